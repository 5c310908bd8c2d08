"""What must be known to read a run: how sure its figures are, whether it was steady, where its latency went. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonbatch.loadtest.mixes import Classes
from tritonbatch.loadtest.records import OK, Records
from tritonbatch.observe.confidence import quantile_interval
from tritonbatch.observe.measurement import Measurement, latency_of
from tritonbatch.observe.split import Means
from tritonbatch.observe.steady import steadiness
from tritonbatch.report.wording import milliseconds, per_second, percent

LEAST = 20
"""Answers below which an interval is not worth its line."""


def run_notes(
    measurement: Measurement, records: Records, generator: Mapping[str, Any], means: Means, classes: Classes | None
) -> Iterator[str]:
    """Sentences on one run, in the order in which they matter; none of them stands without its failures."""
    yield from _faults(measurement, generator)
    yield from _intervals(records)
    if measurement.load.loop == "open":
        yield steadiness(records).sentence
    yield _parts(means)
    yield from _by_class(records, classes)


def pending_note(pending: npt.NDArray[np.float64]) -> str:
    """What the readings of the server's pending count say."""
    seen = pending[~np.isnan(pending)]
    if not len(seen):
        return "Pending requests: the metrics endpoint did not show them."
    return (
        f"Pending requests in the server's queue: {seen.mean():.1f} in the mean, {seen.max():,.0f} at most "
        f"({len(seen):,} readings)."
    )


def _faults(measurement: Measurement, generator: Mapping[str, Any]) -> Iterator[str]:
    if measurement.failed:
        share = percent(measurement.failed / measurement.requests)
        yield f"{measurement.failed:,} of {measurement.requests:,} requests failed ({share}): {_kinds(measurement)}."
    if generator.get("saturated"):
        waits, lag_ms = generator["cap_waits"], generator["schedule_lag_p99_ms"]
        capped = f"{waits:,.0f} requests waited at the cap of {generator['cap']:,}, and " if waits else ""
        yield (
            f"Generator saturated: {capped}the latest 1 % of the requests started {milliseconds(lag_ms)} or more "
            "behind the schedule; give it more --processes, a lower rate or a quieter machine."
        )
    if generator.get("lost_workers"):
        yield f"{generator['lost_workers']} workers were lost: their part of the load is missing."
    elif not generator.get("complete", True):
        yield "The run is not complete: some requests had no answer when it ended."


def _kinds(measurement: Measurement) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in measurement.errors.items())


def _intervals(records: Records) -> Iterator[str]:
    good = records.status == OK
    if int(good.sum()) < LEAST:
        return
    order = np.argsort(records.intended_ns[good], kind="stable")
    latency_ms = ((records.done_ns - records.intended_ns)[good] / 1e6)[order]
    cells = []
    for quantile in (0.5, 0.95, 0.99):
        found = quantile_interval(latency_ms, quantile)
        high = f"to {milliseconds(found.high)}" if math.isfinite(found.high) else "and up"
        cells.append(f"p{quantile * 100:g} {milliseconds(found.estimate)} ({milliseconds(found.low)} {high})")
    yield f"With 95 % intervals: {', '.join(cells)}; a single run knows nothing of the noise between runs."


def _parts(means: Means) -> str:
    if means.batch_wait_ms is None or means.instance_wait_ms is None:
        waits = f"queue {milliseconds(means.queue_ms)}"
    else:
        batch, instance = milliseconds(means.batch_wait_ms), milliseconds(means.instance_wait_ms)
        waits = f"waiting for the batch {batch}, for an instance {instance}"
    return (
        f"Mean latency by part: generator {milliseconds(means.client_ms)}, network {milliseconds(means.network_ms)}, "
        f"{waits}, compute {milliseconds(means.compute_ms)}. {means.note}"
    )


def _by_class(records: Records, classes: Classes | None) -> Iterator[str]:
    priorities = np.unique(records.priority)
    if len(priorities) < 2:
        return
    seconds = max(float(records.done_ns.max() - records.intended_ns.min()) / 1e9, 1e-9)
    for priority in priorities.tolist():
        mine = records.priority == priority
        good = mine & (records.status == OK)
        name = classes.name_of(priority) if classes else f"priority {priority}"
        failed = int(mine.sum() - good.sum())
        if not good.any():
            yield f"{name}: no usable answer to {int(mine.sum()):,} requests."
            continue
        part = _part(records, mine)
        latency = latency_of(part, part.intended_ns)
        longest = float((records.done_ns - records.intended_ns)[good].max()) / 1e6
        yield (
            f"{name} (priority {priority}): goodput {per_second(int(records.rows[good].sum()) / seconds)} rows, "
            f"p50 {milliseconds(latency.p50_ms)}, p99 {milliseconds(latency.p99_ms)}, longest wait "
            f"{milliseconds(longest)}, {failed:,} failed."
        )


def _part(records: Records, mine: Any) -> Records:
    part = Records(records.run, records.model, records.variant, records.intended_ns[mine])
    part.done_ns, part.status = records.done_ns[mine], records.status[mine]
    return part
