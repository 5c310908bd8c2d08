"""A comparison that was repeated: the mean of each figure over the repeats, and how much of it is noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from tritonbatch.observe.confidence import Figure, mean_interval
from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.wording import load_text, significant

FIGURES: dict[str, Callable[[Measurement], float]] = {
    "throughput /s": lambda measurement: measurement.throughput_per_s,
    "p50 ms": lambda measurement: measurement.latency.p50_ms,
    "p95 ms": lambda measurement: measurement.latency.p95_ms,
    "p99 ms": lambda measurement: measurement.latency.p99_ms,
    "mean batch": lambda measurement: measurement.mean_batch,
}
NOTE = "Mean of the repeats ± half of its 95 % interval, from run to run; the repeats were interleaved."


def repeats_table(model: str, repeats: Sequence[Sequence[Measurement]]) -> Table:
    """A row per load and variant of *model*, with what its repeats showed and how many requests failed in all."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=Text(f"{model}, {len(repeats)} repeats"), caption=NOTE)
    table.title_justify = table.caption_justify = "left"
    for name in ("load", "variant"):
        table.add_column(name, overflow="fold")
    for name in (*FIGURES, "failed"):
        table.add_column(name, justify="right", no_wrap=True)
    for first in (measurement for measurement in repeats[0] if measurement.model == model):
        same = [each for repeat in repeats for each in repeat if _key(each) == _key(first)]
        failed = sum(each.failed for each in same)
        style = "bold red" if failed else "green"
        cells = [_cell([figure(each) for each in same]) for figure in FIGURES.values()]
        table.add_row(Text(load_text(first.load)), Text(first.variant), *cells, Text(f"{failed:,}", style=style))
    return table


def _key(measurement: Measurement) -> tuple[str, str, str]:
    return measurement.model, measurement.load.name, measurement.variant


def _cell(values: Sequence[float]) -> str:
    known = [value for value in values if math.isfinite(value)]
    if len(known) < 2:
        return significant(known[0]) if known else "-"
    interval = mean_interval([Figure(value, 0.0) for value in known])
    return f"{significant(interval.estimate)} ± {significant((interval.high - interval.low) / 2, 2)}"
