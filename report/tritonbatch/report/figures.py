"""Plotly figures of a comparison. Backgrounds are transparent and text carries no colour: the page sets its theme.

Every label goes through :func:`plain`, because plotly reads a subset of HTML in text.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from tritonbatch.loadtest.records import OK, Records
from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.explanation import Gain

Floats = npt.NDArray[np.float64]

POINTS = 400
"""Points of a thinned line: more than the pixels between two of them on a phone, twice the pixels on a desktop."""

REFERENCE = {"color": "#888888", "width": 1.5}
PATTERN = {"fillmode": "overlay", "fgcolor": "rgba(255,255,255,0.55)", "size": 7, "solidity": 0.25}

FEW = 5
"""A mean over fewer executions than this is drawn hollow: one slow execution among them moves it visibly."""


@dataclass(frozen=True, slots=True)
class Look:
    """How one variant is drawn everywhere; dash, symbol and pattern tell it apart without its colour."""

    color: str
    dash: str
    symbol: str
    pattern: str


# The palette of Okabe and Ito, whose colours stay apart for every common colour blindness.
KNOWN = {
    "serial": Look("#0072B2", "solid", "circle", ""),
    "static": Look("#009E73", "dot", "square", "/"),
    "dynamic": Look("#D55E00", "dash", "diamond", "x"),
}
OTHERS = (
    Look("#CC79A7", "dashdot", "triangle-up", "."),
    Look("#56B4E9", "longdash", "cross", "-"),
    Look("#E69F00", "longdashdot", "star", "|"),
)


def plain(text: str) -> str:
    """*text* for a plotly label, shown as it is."""
    return html.escape(text, quote=False)


def looks(variants: Iterable[str]) -> dict[str, Look]:
    """A look for each of *variants*, the same in every run for the three usual names."""
    found: dict[str, Look] = {}
    for name in dict.fromkeys(variants):
        found[name] = KNOWN.get(name) or OTHERS[len(found.keys() - KNOWN.keys()) % len(OTHERS)]
    return found


def thinned(ordered: Floats, points: int = POINTS, tail: float = 0.99) -> npt.NDArray[np.int64]:
    """Indices of *ordered* to draw: about *points* of the body, and every single value from the *tail* quantile on."""
    start = math.floor(len(ordered) * tail)
    body = np.linspace(0, max(start - 1, 0), min(points, start)).astype(np.int64)
    return np.unique(np.concatenate([body, np.arange(start, len(ordered))]))


def latency_figure(records: Mapping[str, Records], style: Mapping[str, Look]) -> go.Figure:
    """The share of all requests answered within a time from their intended start, one step line per variant."""
    figure = _figure("latency from intended start, ms (log)", "requests answered within")
    for variant, run in records.items():
        good = run.status == OK
        ordered = np.sort((run.done_ns - run.intended_ns)[good] / 1e6)
        at = thinned(ordered)
        share = (at + 1) / len(run)  # of all requests: a line that ends below 100% had failures
        _line(figure, variant, ordered[at], share, style[variant]).update(line_shape="hv")
    figure.add_hline(y=0.99, line={**REFERENCE, "dash": "dot"}, annotation={"text": "99%", "font": {"size": 11}})
    figure.update_xaxes(type="log", tickformat=",~g", dtick=1).update_yaxes(tickformat=".0%", range=[0, 1.03])
    return figure


def executions_figure(measurements: Sequence[Measurement], style: Mapping[str, Look]) -> go.Figure:
    """The share of each variant's executions by batch size, as the server counted them."""
    figure = _figure("batch size of the execution", "share of executions")
    for m in measurements:
        counts = np.array([e.count for e in m.executions], dtype=np.int64)
        look = style[m.variant]
        figure.add_bar(
            name=plain(m.variant),
            x=[str(e.batch_size) for e in m.executions],
            y=counts / max(int(counts.sum()), 1),
            customdata=counts,
            marker={"color": look.color, "pattern": {**PATTERN, "shape": look.pattern}},
            hovertemplate="batch %{x}: %{customdata:,} executions (%{y:.1%})",
        )
    sizes = sorted({e.batch_size for m in measurements for e in m.executions})
    figure.update_xaxes(type="category", categoryorder="array", categoryarray=[str(size) for size in sizes])
    return figure.update_yaxes(tickformat=".0%", rangemode="tozero")


def occupancy_figure(gains: Sequence[Gain]) -> go.Figure:
    """t(B) between the two extremes: flat, where batching is free, and linear, where it gains nothing."""
    figure = _figure("batch size B (log)", "t(B), ms (log)")
    if gains[0].batch_size == 1:
        most, one_ms = gains[-1].batch_size, gains[0].occupancy_ms
        _reference(figure, "ideal: flat", most, (one_ms, one_ms), dash="dot")
        _reference(figure, "no gain: linear", most, (one_ms, one_ms * most), dash="dash")
    return _curve(figure, gains, [g.occupancy_ms for g in gains], "t(B)", "%{y:.3~r} ms")


def capacity_figure(gains: Sequence[Gain], heavy: Sequence[Measurement], style: Mapping[str, Look]) -> go.Figure:
    """B/t(B), what batches of B could carry, and what each variant of *heavy* did carry at its mean batch."""
    figure = _figure("batch size B (log)", "requests/s (log)")
    if gains[0].batch_size == 1:
        most, one_per_s = gains[-1].batch_size, gains[0].per_s
        _reference(figure, "ideal: flat t(B)", most, (one_per_s, one_per_s * most), dash="dot")
        _reference(figure, "no gain: linear t(B)", most, (one_per_s, one_per_s), dash="dash")
    _curve(figure, gains, [g.per_s for g in gains], "B/t(B)", "%{y:,.0f}/s")
    for m in (m for m in heavy if m.executions):
        look = style[m.variant]
        figure.add_scatter(
            name=plain(f"{m.variant}, measured"),
            x=[m.mean_batch],
            y=[m.throughput_per_s],
            mode="markers",
            marker={"color": look.color, "symbol": look.symbol, "size": 13, "line": {"color": "#ffffff", "width": 1}},
            hovertemplate="mean batch %{x:.3~r}: %{y:,.0f}/s",
        )
    return figure


def completions_figure(records: Mapping[str, Records], style: Mapping[str, Look]) -> go.Figure:
    """Requests completed by each moment; the slope is the throughput, the gap to the arrivals is the backlog."""
    figure = _figure("seconds since the start of the run", "requests completed")
    longest = max(records.values(), key=len)
    arrived = np.sort(longest.intended_ns) / 1e9
    at = thinned(arrived, tail=1.0)
    figure.add_scatter(name="arrived", x=arrived[at], y=at + 1, mode="lines", line=REFERENCE)
    for variant, run in records.items():
        done = np.sort(run.done_ns[run.status == OK]) / 1e9
        at = thinned(done, tail=1.0)
        _line(figure, variant, done[at], at + 1, style[variant])
    return figure.update_yaxes(tickformat=",~s", rangemode="tozero")


def _figure(x: str, y: str) -> go.Figure:
    axis = {"automargin": True, "zeroline": False}
    return go.Figure(
        layout={
            "template": "none",
            "autosize": True,
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "margin": {"l": 56, "r": 12, "t": 8, "b": 48},
            "legend": {"orientation": "h", "x": 0, "y": 1.02, "xanchor": "left", "yanchor": "bottom"},
            "xaxis": {**axis, "title": {"text": x, "standoff": 8}},
            "yaxis": {**axis, "title": {"text": y, "standoff": 8}},
            "barmode": "group",
        }
    )


def _line(figure: go.Figure, variant: str, x: Floats, y: npt.NDArray[Any], look: Look) -> Any:
    figure.add_scatter(
        name=plain(variant), x=x, y=y, mode="lines", line={"color": look.color, "dash": look.dash, "width": 2.5}
    )
    return figure.data[-1]


def _curve(figure: go.Figure, gains: Sequence[Gain], values: Sequence[float], name: str, hover: str) -> go.Figure:
    figure.add_scatter(
        name=name,
        x=[g.batch_size for g in gains],
        y=values,
        customdata=[g.executions for g in gains],
        mode="lines+markers",
        line={"color": "#7A6FD0", "width": 2.5},
        marker={"size": 7, "symbol": ["circle" if g.executions >= FEW else "circle-open" for g in gains]},
        hovertemplate=f"B = %{{x}}: {hover} (%{{customdata:,}} executions)",
    )
    powers = [2**k for k in range(gains[-1].batch_size.bit_length())]
    figure.update_xaxes(type="log", tickvals=powers, ticktext=[str(power) for power in powers])
    return figure.update_yaxes(type="log", dtick=1, tickformat=",~g")


def _reference(figure: go.Figure, name: str, most: int, ends: tuple[float, float], dash: str) -> None:
    line = {**REFERENCE, "dash": dash}
    figure.add_scatter(name=name, x=[1, most], y=ends, mode="lines", line=line, hoverinfo="skip")
