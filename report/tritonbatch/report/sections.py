"""The part of the page about one model: its verdict, its numbers, its figures and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.drawings import RunRecords, curve_drawings, grid, load_drawings
from tritonbatch.report.figures import Look
from tritonbatch.report.markup import table, text
from tritonbatch.report.table import GAIN_HEADS, NOTE, NUMBERS, gain_rows, numbers
from tritonbatch.report.verdict import Verdict
from tritonbatch.report.wording import (
    by_load,
    errors_text,
    executions_text,
    load_text,
    per_second,
    significant,
)

# Failures stand before the percentiles, so that a narrow screen never shows these without those.
HEADS = ("load", "variant", "failed", *NUMBERS, "queue ms", "executions")


def model_section(
    name: str, group: Sequence[Measurement], verdict: Verdict | None, records: RunRecords, style: Mapping[str, Look]
) -> str:
    """Everything about one model, *name* being its anchor."""
    parts = [
        f'<section aria-labelledby="{name}"><h2 id="{name}">{text(group[0].model)}</h2>',
        _verdict(verdict, by_load(group)[-1], style),
        _results(group, style),
        f"<h3>Latency and batches</h3>{grid(f'{name}-load', load_drawings(group, records, style))}",
        f"<h3>Why: what one execution takes</h3>{_explanation(verdict)}",
        grid(f"{name}-why", curve_drawings(group, records, style)),
        _gains(verdict),
        "</section>",
    ]
    return "\n".join(parts)


def _verdict(verdict: Verdict | None, heavy: Sequence[Measurement], style: Mapping[str, Look]) -> str:
    sentence = f"<p>{text(verdict.sentence)}</p>" if verdict else ""
    return f'<div class="verdict">{sentence}{_bars(heavy, style)}</div>'


def _bars(heavy: Sequence[Measurement], style: Mapping[str, Look]) -> str:
    """Throughput under the heaviest load at a glance; the number stands beside each bar."""
    most = max(m.throughput_per_s for m in heavy) or 1
    items = "".join(
        f'<li><span class="name">{text(m.variant)}</span><span class="track"><span class="bar" style="width:'
        f'{60 * m.throughput_per_s / most:.1f}%;background:{style[m.variant].color}"></span>'
        f'<span class="value">{per_second(m.throughput_per_s)}/s{_failed_mark(m)}</span></span></li>'
        for m in heavy
    )
    title = text(f"Throughput under {heavy[0].load.name} ({load_text(heavy[0].load)})")
    return f'<p class="note bars-title">{title}</p><ul class="bars" aria-label="{title}">{items}</ul>'


def _failed_mark(measurement: Measurement) -> str:
    return f' <span class="failed">{measurement.failed:,} failed</span>' if measurement.failed else ""


def _results(group: Sequence[Measurement], style: Mapping[str, Look]) -> str:
    """The same rows as the terminal's table, each load a row group."""
    bodies = "".join(f"<tbody>{''.join(_rows(load, style))}</tbody>" for load in by_load(group))
    return table(f"Results for {group[0].model}", NOTE, HEADS, bodies, "results")


def _rows(load: Sequence[Measurement], style: Mapping[str, Look]) -> Iterator[str]:
    arrivals = f"{text(load[0].load.name)}<small>{text(load_text(load[0].load))}</small>"
    for position, m in enumerate(load):
        first = f'<th scope="rowgroup" rowspan="{len(load)}">{arrivals}</th>' if position == 0 else ""
        swatch = f'<span class="swatch" style="background:{style[m.variant].color}"></span>'
        cells = "".join(f"<td>{text(cell)}</td>" for cell in (*numbers(m), significant(m.queue_ms)))
        yield (
            f'<tr>{first}<th scope="row">{swatch}{text(m.variant)}</th>'
            f'<td class="text{" wrap failed" if m.failed else ""}">{text(errors_text(m))}</td>'
            f'{cells}<td class="text wrap">{text(executions_text(m))}</td></tr>'
        )


def _explanation(verdict: Verdict | None) -> str:
    paragraphs = "".join(f"<p>{text(line)}</p>" for line in verdict.explanation.splitlines()) if verdict else ""
    return f'<div class="explanation">{paragraphs}</div>'


def _gains(verdict: Verdict | None) -> str:
    if verdict is None or not verdict.gains:
        return ""
    rows = "".join(
        f'<tr><th scope="row">{size}</th>{"".join(f"<td>{text(cell)}</td>" for cell in cells)}</tr>'
        for size, *cells in gain_rows(verdict.gains)
    )
    caption = (
        "t(B) is the mean over the executions of this size, from the server's statistics; a row with few is noise."
    )
    shown = table(f"Gain by batch size for {verdict.model}", caption, GAIN_HEADS, f"<tbody>{rows}</tbody>", "gains")
    return f"<h3>Gain by batch size</h3>{shown}"
