"""What is said beside a run, and the table of repeats: pure folds over records."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from tritonbatch.loadtest.mixes import classes
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import OK, STATUSES, Records
from tritonbatch.observe.measurement import Measurement, errors_of, latency_of, throughput_of
from tritonbatch.observe.split import Means
from tritonbatch.report.repeats import repeats_table
from tritonbatch.report.run_notes import pending_note, run_notes

MEANS = Means(
    client_ms=0.1,
    network_ms=0.5,
    queue_ms=1.0,
    batch_wait_ms=None,
    instance_wait_ms=None,
    compute_ms=2.0,
    requests=200,
    server_requests=200,
)
GENERATOR = {"complete": True, "saturated": False, "cap_waits": 0, "cap": 4096, "schedule_lag_p99_ms": 0.1}


def answered(count: int = 200, latency_ms: float = 4.0) -> Records:
    """Requests 10 ms apart that all took as long."""
    records = Records("r", "m", "served", np.arange(count, dtype=np.int64) * 10_000_000)
    records.sent_ns[:] = records.intended_ns
    records.done_ns[:] = records.intended_ns + int(latency_ms * 1e6)
    records.status[:] = OK
    return records


def measured(records: Records, variant: str = "served") -> Measurement:
    """The measurement of *records*."""
    throughput, duration_s = throughput_of(records)
    return Measurement(
        model="m",
        variant=variant,
        load=Load(name="steady", rate_per_s=100, requests=len(records), seed=1),
        requests=len(records),
        errors=errors_of(records),
        duration_s=duration_s,
        throughput_per_s=throughput,
        latency=latency_of(records, records.intended_ns),
        raw_latency=latency_of(records, records.sent_ns),
        schedule_lag_p99_ms=0.1,
        queue_ms=1.0,
        executions=(),
        max_batch_size=8,
        scheduler="dynamic",
    )


def notes(records: Records, text: str = "", **generator: Any) -> str:
    """All notes on *records* as one text."""
    kinds = classes(text) if text else None
    return "\n".join(run_notes(measured(records), records, {**GENERATOR, **generator}, MEANS, kinds))


def test_a_good_run_is_said_to_be_one() -> None:
    """Intervals, steadiness and the parts of the mean latency; no word of failures that there were not."""
    said = notes(answered())
    assert "p99 4.0 ms (4.0 ms" in said
    assert "Steady" in said
    assert "queue 1.0 ms, compute 2.0 ms" in said
    assert "failed" not in said
    assert "saturated" not in said


def test_the_two_waits_are_named_where_they_are_known() -> None:
    """With a trace the queue is two waits."""
    means = replace(MEANS, batch_wait_ms=0.7, instance_wait_ms=0.3)
    said = "\n".join(run_notes(measured(answered()), answered(), GENERATOR, means, None))
    assert "waiting for the batch 0.70 ms, for an instance 0.30 ms" in said


@pytest.mark.parametrize(
    ("generator", "says"),
    [
        ({"saturated": True, "schedule_lag_p99_ms": 33.0}, "Generator saturated: the latest 1 %"),
        ({"saturated": True, "cap_waits": 1505}, "1,505 requests waited at the cap of 4,096"),
        ({"lost_workers": 1}, "1 workers were lost"),
        ({"complete": False}, "not complete"),
    ],
)
def test_what_spoils_a_run_comes_first(generator: dict[str, Any], says: str) -> None:
    """The first sentence is the one that must be known."""
    assert says in notes(answered(), **generator).splitlines()[0]


def test_failures_come_with_their_kinds_and_share() -> None:
    """A quarter of the requests was rejected or failed: first sentence."""
    records = answered()
    records.status[:30] = STATUSES.index("rejected")
    records.status[30:50] = STATUSES.index("failed")
    first = notes(records).splitlines()[0]
    assert "50 of 200 requests failed (25" in first
    assert "30 rejected, 20 failed" in first


def test_each_class_has_its_goodput_and_its_longest_wait() -> None:
    """Two classes, one of which waited; a class without any answer is said too."""
    records = answered()
    records.priority[:] = np.where(np.arange(200) % 4, 1, 2)
    records.rows[records.priority == 2] = 8
    records.done_ns[records.priority == 2] += 96_000_000
    said = notes(records, "interactive=1:0.75,bulk=2x8:0.25")
    assert "interactive (priority 1): goodput" in said
    assert "bulk (priority 2)" in said
    assert "longest wait 100 ms" in said
    records.status[records.priority == 2] = STATUSES.index("timeout")
    assert "bulk: no usable answer to 50 requests" in notes(records, "interactive=1:0.75,bulk=2x8:0.25")


def test_few_or_no_answers_make_no_intervals() -> None:
    """A run of five, and one that failed as a whole, still have their notes."""
    assert "95 % intervals" not in notes(answered(5))
    records = answered()
    records.status[:] = STATUSES.index("failed")
    assert "200 of 200 requests failed" in notes(records)


def test_the_pending_count_is_summarised() -> None:
    """Readings without it do not count; none at all is said."""
    assert "1.5 in the mean, 3 at most (2 readings)" in pending_note(np.array([0.0, np.nan, 3.0]))
    assert "did not show" in pending_note(np.array([np.nan]))


def test_repeats_are_means_with_their_noise() -> None:
    """Three repeats of two variants: the mean of each, its spread, and the failures of all of them."""
    worse = answered(latency_ms=6.0)
    worse.status[0] = STATUSES.index("failed")
    repeats = [
        [measured(answered(latency_ms=4.0), "serial"), measured(answered(), "dynamic")],
        [measured(worse, "serial"), measured(answered(), "dynamic")],
        [measured(answered(latency_ms=5.0), "serial"), measured(answered(), "dynamic")],
    ]
    console = Console(width=150, record=True, file=Path("/dev/null").open("w"))  # noqa: SIM115
    console.print(repeats_table("m", repeats))
    serial, dynamic = (line for line in console.export_text().splitlines() if "serial" in line or "dynamic" in line)
    assert "5.00 ± " in serial
    assert serial.rstrip().endswith("1")
    assert "4.00 ± 0" in dynamic
    assert dynamic.rstrip().endswith("0")
