"""The results as terminal tables and as Markdown: one table per model, one row per load and variant.

A percentile never stands without the number of failures in its row, because it is of the requests that succeeded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.table import Table
from rich.text import Text

from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.explanation import Gain
from tritonbatch.report.verdict import Verdict
from tritonbatch.report.wording import (
    TIMES,
    by_load,
    by_model,
    errors_text,
    executions_text,
    kinds_text,
    load_text,
    per_second,
    significant,
    times,
)

WIDE = 100
"""Columns from which executions fit into the table; on a narrower terminal they follow below it."""

ROOMY = 115
"""Columns from which there is room for two spaces between the cells."""

MOST_SIZES = 8
"""Batch sizes in the terminal's table of gains; a dynamic run may form every size there is."""

HEADS = ("through-\nput /s", "p50\nms", "p95\nms", "p99\nms", "p99\nsent", "mean\nbatch")
NUMBERS = ("throughput/s", "p50 ms", "p95 ms", "p99 ms", "p99 sent ms", "mean batch")
GAIN_HEADS = ("B", "executions", "t(B) ms", "t(B)/t(1)", "B/t(B) /s", f"{TIMES} over B=1")
NOTE = (
    "Latency of the requests that succeeded, from the intended start; p99 sent counts from sending. "
    f"Executions: batch size{TIMES}count, as the server counted them."
)


@dataclass(frozen=True, slots=True)
class ResultsTable:
    """The measurements of one model, laid out for the width of the console that prints it."""

    model: str
    measurements: tuple[Measurement, ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= WIDE
        yield Text(self.model, style="bold")
        yield self._table(wide=wide, gap=2 if options.max_width >= ROOMY else 1)
        if not wide:
            yield Text.assemble(*self._executions(), overflow="fold")
        yield Text(NOTE, style="dim")

    def _table(self, *, wide: bool, gap: int) -> Table:
        table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0))
        table.add_column("load", overflow="fold", min_width=10)
        table.add_column("variant", overflow="fold", style="bold", min_width=7)
        for head in HEADS:
            table.add_column(head, justify="right", no_wrap=True)
        if wide:
            table.add_column("executions", overflow="fold", min_width=16)
        table.add_column("failed", overflow="fold", min_width=11 if any(m.failed for m in self.measurements) else 6)
        for group in by_load(self.measurements):
            for m, load in zip(group, _load_cells(group), strict=True):
                executions = [Text(executions_text(m), style="dim")] if wide else []
                failed = Text(errors_text(m, kinds=wide), style="bold red" if m.failed else "green")
                table.add_row(Text(load), Text(m.variant), *map(Text, numbers(m)), *executions, failed)
            table.add_section()
        return table

    def _executions(self) -> Iterator[tuple[str, str]]:
        yield ("executions\n", "bold")
        for m in self.measurements:
            yield (f"  {m.load.name} {m.variant}  ", "")
            yield (f"{executions_text(m)}\n", "dim")
            if m.failed:
                yield (f"    failed: {kinds_text(m.errors)}\n", "bold red")


def results_tables(measurements: Iterable[Measurement]) -> list[ResultsTable]:
    """One table per model, in order of appearance."""
    return [ResultsTable(model, tuple(group)) for model, group in by_model(measurements).items()]


def gains_table(verdict: Verdict) -> Table:
    """t(B) and the factor it allows, for size 1 and the sizes that carried the most rows; the page has them all."""
    telling = sorted(verdict.gains, key=lambda g: (g.batch_size != 1, -g.batch_size * g.executions))[:MOST_SIZES]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in GAIN_HEADS:
        table.add_column(name, justify="right")
    for row in gain_rows(sorted(telling, key=lambda g: g.batch_size)):
        table.add_row(*row)
    return table


def gain_rows(gains: Iterable[Gain]) -> list[tuple[str, ...]]:
    """The cells under :data:`GAIN_HEADS`, a row per batch size."""
    return [
        (
            str(g.batch_size),
            f"{g.executions:,}",
            significant(g.occupancy_ms),
            times(g.times_one),
            per_second(g.per_s),
            times(g.gain),
        )
        for g in gains
    ]


def markdown_table(measurements: Sequence[Measurement]) -> str:
    """The same rows as Markdown, a heading line and a table per model."""
    return "\n".join(f"**{_escape(model)}**\n\n{_markdown(group)}" for model, group in by_model(measurements).items())


def numbers(measurement: Measurement) -> tuple[str, ...]:
    """The cells under :data:`NUMBERS`."""
    latency, raw = measurement.latency, measurement.raw_latency
    quantiles = (latency.p50_ms, latency.p95_ms, latency.p99_ms, raw.p99_ms)
    cells = (*(significant(q) for q in quantiles), significant(measurement.mean_batch))
    return (per_second(measurement.throughput_per_s), *cells)


def _markdown(measurements: Sequence[Measurement]) -> str:
    head = ["load", "variant", *NUMBERS, "executions", "failed"]
    rule = [":--", ":--", *["--:"] * len(NUMBERS), ":--", ":--"]
    rows = [
        [f"{m.load.name} ({load_text(m.load)})", m.variant, *numbers(m), executions_text(m), errors_text(m)]
        for m in measurements
    ]
    lines = [head, rule, *([_escape(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _escape(text: str) -> str:
    """*text* without any meaning to Markdown or HTML, on one line; an underscore inside a word has none."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\|`*[]" else c for c in " ".join(text.split()))


def _load_cells(group: Sequence[Measurement]) -> list[str]:
    """Name, rate and loop of the load of *group* spread over its rows, so that they cost no lines of their own."""
    load = group[0].load
    lines = [load.name, *load_text(load).split(", ")]
    last = len(group) - 1
    return [*(lines + [""] * last)[:last], "\n".join(lines[last:])]
