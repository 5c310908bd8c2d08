"""Why a variant carried what it carried, from t(B), the mean time of one execution of B requests.

One at a time a model carries at most 1/t(1); in batches of B at most B/t(B). What a run carried beside that is
    measured = B̄/t(B̄) x spread x busy
where B̄ is its mean batch, *spread* what uneven batch sizes change, and *busy* the share of the run that was compute.
A number that the server did not report stays NaN; nothing is extrapolated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tritonbatch.observe.measurement import Measurement, service_curve
from tritonbatch.report.wording import demand, milliseconds, percent, rate, times, trimmed

KEPT_UP = 0.95
"""From this share of the offered rate on, a variant kept up and its capacity stays unknown; the last answers of a
run of a few seconds come late enough to cost a few per cent."""

NEAR = 0.05
"""Shares closer than this to 1 are not worth a sentence: one run repeats to about this."""

LATE_MS = 5.0
"""A generator later than this at p99 is named as a suspect: it is as long as an execution of a small model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """One row of the gain table: t(B), and what batches of B could carry; NaN where t(1) is unknown."""

    batch_size: int
    executions: int
    occupancy_ms: float
    times_one: float
    per_s: float
    gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """What t(B) says that a variant could carry beside what it carried under its heaviest load."""

    variant: str
    mean_batch: float
    predicted_per_s: float
    measured_per_s: float
    spread: float
    busy: float


def gain_table(measurements: Sequence[Measurement]) -> tuple[Gain, ...]:
    """t(B), t(B)/t(1), B/t(B) and its factor over B = 1, by batch size."""
    curve = service_curve(measurements)
    one_ms = curve.get(1, math.nan)
    counts = _counts(measurements)
    return tuple(
        Gain(
            batch_size=size,
            executions=counts[size],
            occupancy_ms=t_ms,
            times_one=t_ms / one_ms,
            per_s=1000 * size / t_ms,
            gain=size * one_ms / t_ms,
        )
        for size, t_ms in curve.items()
        if t_ms > 0
    )


def kept_up(measurement: Measurement) -> bool:
    """Whether the variant answered as fast as requests arrived, so that its capacity was not reached."""
    return measurement.throughput_per_s >= KEPT_UP * demand(measurement.load)


def predict(measurement: Measurement, curve: Mapping[int, float]) -> Prediction:
    """B̄/t(B̄) for *measurement*, t between two measured sizes being interpolated, and where the rest went."""
    mean = measurement.mean_batch
    possible = 1000 * mean / _interpolate(curve, mean)
    busy_ms = sum(e.count * e.occupancy_ms for e in measurement.executions)
    rows = sum(e.count * e.batch_size for e in measurement.executions)
    computed_per_s = 1000 * rows / busy_ms if busy_ms > 0 else math.nan
    return Prediction(
        variant=measurement.variant,
        mean_batch=mean,
        predicted_per_s=possible,
        measured_per_s=measurement.throughput_per_s,
        spread=computed_per_s / possible,
        busy=measurement.throughput_per_s / computed_per_s,
    )


def explain(heavy: Mapping[str, Measurement], baseline: Measurement | None, curve: Mapping[int, float]) -> str:
    """The paragraphs that derive each variant's throughput under the heaviest load from t(B)."""
    if not any(m.executions for m in heavy.values()):
        return "The server reported no statistics for these runs, so t(B) is unknown and the factor stays unexplained."
    one = _one_at_a_time(baseline, curve)
    return "\n".join([one, *(_paragraph(m, baseline, curve) for m in heavy.values() if m is not baseline)])


def _counts(measurements: Iterable[Measurement]) -> dict[int, int]:
    """How many executions of each batch size there were, over all of *measurements*."""
    counts: dict[int, int] = {}
    for e in (e for m in measurements for e in m.executions if e.count):
        counts[e.batch_size] = counts.get(e.batch_size, 0) + e.count
    return dict(sorted(counts.items()))


def _interpolate(curve: Mapping[int, float], batch: float) -> float:
    sizes = [size for size, t_ms in curve.items() if t_ms > 0]
    if not sizes or not min(sizes) <= batch <= max(sizes):
        return math.nan
    return float(np.interp(batch, sizes, [curve[size] for size in sizes]))


def _one_at_a_time(baseline: Measurement | None, curve: Mapping[int, float]) -> str:
    if not curve.get(1):
        return "No execution of one request was seen, so t(1) is unknown and no factor over one at a time is predicted."
    bound = f"One execution of 1 takes t(1) = {milliseconds(curve[1])}, so one at a time carries at most 1/t(1) = "
    bound += rate(1000 / curve[1])
    if baseline is None:
        return f"{bound}."
    return f"{bound}; {baseline.variant} carried {rate(baseline.throughput_per_s)}{_rest(baseline, curve)}."


def _paragraph(measurement: Measurement, baseline: Measurement | None, curve: Mapping[int, float]) -> str:
    found = predict(measurement, curve)
    carried = f"it carried {rate(found.measured_per_s)}"
    if baseline is not None and baseline.throughput_per_s > 0:
        carried += f", {times(found.measured_per_s / baseline.throughput_per_s)} times {baseline.variant}"
    if math.isnan(found.predicted_per_s):
        return f"{measurement.variant}: the server reported no executions, so nothing is predicted; {carried}."
    mean = trimmed(found.mean_batch)
    could = f"{mean}/t({mean}) = {rate(found.predicted_per_s)}"
    if curve.get(1):
        could += f", {times(found.predicted_per_s * curve[1] / 1000)} times 1/t(1)"
    batches = f"{measurement.variant}: an execution held {mean} requests on average, so t(B) allows {could}"
    return f"{batches}; {carried}{_rest(measurement, curve)}."


def _rest(measurement: Measurement, curve: Mapping[int, float]) -> str:
    """Where the difference between the prediction and the measurement went."""
    if kept_up(measurement):
        return f", which is all that arrived under {measurement.load.name}, so its capacity was not reached"
    found = predict(measurement, curve)
    parts = [*_spread_text(found.spread), *_busy_text(found.busy)]
    if measurement.schedule_lag_p99_ms > LATE_MS:
        parts.append(f"requests left the client up to {milliseconds(measurement.schedule_lag_p99_ms)} late (p99)")
    return f" ({'; '.join(parts)})" if parts else ""


def _spread_text(spread: float) -> list[str]:
    if math.isnan(spread) or abs(spread - 1) < NEAR:
        return []
    return [f"batches of uneven size, and t(B) differing between runs, change it to {percent(spread)}"]


def _busy_text(busy: float) -> list[str]:
    if math.isnan(busy):
        return []
    if busy > 1 + NEAR:
        return [f"executions overlapped, {times(busy)} at a time on average, so more than one instance worked"]
    outside = "the rest went outside compute: forming batches, transport, and the load generator on its cores"
    return [f"compute filled {percent(busy)} of the run" + (f"; {outside}" if busy < 1 - NEAR else "")]
