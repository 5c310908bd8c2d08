"""Which figures the page shows of a model, and what is said about each."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from tritonbatch.loadtest.records import Records
from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.explanation import gain_table
from tritonbatch.report.figures import (
    FEW,
    Look,
    capacity_figure,
    completions_figure,
    executions_figure,
    latency_figure,
    occupancy_figure,
)
from tritonbatch.report.markup import script_json, text
from tritonbatch.report.wording import by_load, load_text

RunRecords = Mapping[tuple[str, str, str], Records]
"""The records of each run by (model, load name, variant)."""


@dataclass(frozen=True, slots=True)
class Drawing:
    """A figure with what is said about it: *title* above, *caption* below and, for a reader who cannot see it, both."""

    figure: go.Figure
    title: str
    caption: str


def load_drawings(group: Sequence[Measurement], records: RunRecords, style: Mapping[str, Look]) -> Iterator[Drawing]:
    """Latency and batch sizes under each load."""
    for load in by_load(group):
        at = f"{load[0].load.name}, {load_text(load[0].load)}"
        if runs := _runs(load, records):
            yield Drawing(
                latency_figure(runs, style),
                f"Latency: {at}",
                "The share of all requests that was answered within a time; further left is better. "
                "Every request beyond p99 is drawn. A line that ends below 100% had failures.",
            )
        if any(m.executions for m in load):
            yield Drawing(
                executions_figure(load, style),
                f"Batch sizes: {at}",
                "Of the executions of each variant, the share that had this batch size. Sizes that never occurred "
                "are left out.",
            )


def curve_drawings(group: Sequence[Measurement], records: RunRecords, style: Mapping[str, Look]) -> Iterator[Drawing]:
    """t(B), what it allows, and the work done under the heaviest load."""
    heavy = by_load(group)[-1]
    at = f"{heavy[0].load.name}, {load_text(heavy[0].load)}"
    if gains := gain_table(group):
        yield Drawing(
            occupancy_figure(gains),
            "t(B): the time of one execution",
            "The flatter, the more batching gains. Pooled over every run of this model; a hollow mark is "
            f"the mean of fewer than {FEW} executions.",
        )
        yield Drawing(
            capacity_figure(gains, heavy, style),
            "B/t(B): what batches of B can carry",
            f"Marks show what each variant carried under {heavy[0].load.name}, at its mean batch; what lies between a "
            "mark and the line is time outside compute.",
        )
    if runs := _runs(heavy, records):
        yield Drawing(
            completions_figure(runs, style),
            f"Completions: {at}",
            "The slope is the throughput. The distance up to the arrivals is the backlog, the one across is the wait.",
        )


def grid(name: str, drawings: Iterable[Drawing]) -> str:
    """The figures side by side where there is room; *name* makes their ids unique in the page."""
    return f'<div class="grid">{"".join(_figure(f"{name}-{i}", d) for i, d in enumerate(drawings))}</div>'


def _figure(name: str, drawing: Drawing) -> str:
    label = text(f"{drawing.title}. {drawing.caption}")
    return (
        f'<figure><h4>{text(drawing.title)}</h4><div class="plot" id="{name}" role="img" aria-label="{label}"></div>'
        f"<figcaption>{text(drawing.caption)}</figcaption>"
        f'<script type="application/json" id="{name}-data">{script_json(drawing.figure.to_json())}</script></figure>\n'
    )


def _runs(load: Sequence[Measurement], records: RunRecords) -> dict[str, Records]:
    keys = {m.variant: (m.model, m.load.name, m.variant) for m in load}
    return {variant: records[key] for variant, key in keys.items() if key in records and len(records[key])}
