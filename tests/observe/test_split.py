"""Records joined to a trace, and latency divided into parts: by hand, and for anything that can happen."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup
from tritonclient.grpc.service_pb2 import ModelStatistics

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.records import OK, STATUSES, Records
from tritonbatch.observe.join import clock_offset_ns, join, with_rows
from tritonbatch.observe.split import (
    instance_count,
    means_from_statistics,
    means_of,
    saturated_ns,
    split,
)
from tritonbatch.observe.trace import TIMES, Trace, batch_sizes, executions

MS = 1_000_000
CLOCK = 5_000 * MS
"""How far the server's clock is ahead of the run's."""


def records_of(intended: list[int], sent: list[int], done: list[int], run: str = "run") -> Records:
    """Answered requests of model m with these times in milliseconds."""
    records = Records(run, "m", "v", np.array(intended, np.int64) * MS)
    records.sent_ns = np.array(sent, np.int64) * MS
    records.done_ns = np.array(done, np.int64) * MS
    records.status[:] = OK
    return records


def trace_of(ids: list[str], queued: list[int], started: list[int], ended: list[int], model: str = "m") -> Trace:
    """Requests with these times in milliseconds on the run's clock; started -1 for one that never ran."""
    rows = len(ids)
    ran = np.array(started) >= 0
    at = {
        name: np.array(values, np.int64) * MS + CLOCK for name, values in (("q", queued), ("s", started), ("e", ended))
    }
    start_ns, end_ns = np.where(ran, at["s"], -1), np.where(ran, at["e"], -1)
    models, version = np.full(rows, model), np.ones(rows, np.int64)
    times: dict[str, npt.NDArray[np.int64]] = dict.fromkeys(TIMES, np.full(rows, -1, np.int64)) | {
        "receive_ns": at["q"],
        "request_start_ns": at["q"],
        "queue_start_ns": at["q"],
        "compute_start_ns": start_ns,
        "compute_input_end_ns": np.where(ran, start_ns + 10, -1),
        "compute_output_start_ns": np.where(ran, end_ns - 10, -1),
        "compute_end_ns": end_ns,
        "request_end_ns": at["e"] + 1000,
    }
    execution = executions(models, version, start_ns, times["compute_input_end_ns"])
    batch = batch_sizes(execution, np.ones(rows, np.int64))
    parent = np.full(rows, -1, np.int64)
    request_id = np.array(ids, str)
    return Trace(
        request_id=request_id, model=models, version=version, parent=parent, **times, execution=execution, batch=batch
    )


def test_the_wait_is_divided_at_the_instances_state() -> None:
    """One instance, busy from 10 to 30: who waits from 5 to 30 waited 5 for the batch and 20 for the instance."""
    records = records_of([0, 4], [1, 5], [31, 52])
    trace = trace_of(["run-0", "run-1"], [2, 5], [10, 30], [30, 50])
    parts = split(records, trace, join(records, trace), instances=1)
    assert parts.batch_wait_ns is not None
    assert parts.instance_wait_ns is not None
    assert (parts.batch_wait_ns // MS).tolist() == [8, 5]
    assert (parts.instance_wait_ns // MS).tolist() == [0, 20]
    assert (parts.client_ns // MS).tolist() == [1, 1]
    assert (parts.compute_ns // MS).tolist() == [20, 20]
    assert (parts.network_ns // MS).tolist() == [2, 2]
    assert (parts.total_ns == records.done_ns - records.intended_ns).all()


def test_with_an_idle_instance_all_waiting_is_for_the_batch() -> None:
    """The same requests on two instances: there was always one that could have run them."""
    records = records_of([0, 4], [1, 5], [31, 52])
    trace = trace_of(["run-0", "run-1"], [2, 5], [10, 30], [30, 50])
    parts = split(records, trace, join(records, trace), instances=2)
    assert parts.instance_wait_ns is not None
    assert parts.instance_wait_ns.tolist() == [0, 0]


@st.composite
def intervals(draw: st.DrawFn) -> tuple[list[int], list[int], int, list[int]]:
    """Some executions, a number of instances, and moments to ask about, all small so that they collide."""
    begin = draw(st.lists(st.integers(0, 30), max_size=12))
    end = [start + draw(st.integers(0, 10)) for start in begin]
    return begin, end, draw(st.integers(1, 3)), draw(st.lists(st.integers(-5, 50), min_size=1, max_size=8))


@given(intervals())
def test_saturated_time_is_the_count_of_saturated_ticks(case: tuple[list[int], list[int], int, list[int]]) -> None:
    """The integral equals counting, tick by tick, where at least so many executions run."""
    begin, end, instances, at = case
    found = saturated_ns(np.array(begin, np.int64), np.array(end, np.int64), instances, np.array(at, np.int64))

    def full(tick: int) -> bool:
        return sum(start <= tick < stop for start, stop in zip(begin, end, strict=True)) >= instances

    assert found.tolist() == [sum(full(tick) for tick in range(moment)) for moment in at]


def some_requests() -> Any:
    """Requests as (intended, sent after, queued after, waited, computed, answered after), all in milliseconds."""
    steps = st.tuples(*(st.integers(0, 40) for _ in range(6)))
    return st.lists(steps, min_size=1, max_size=30)


@settings(max_examples=60)
@given(some_requests(), st.integers(1, 3))
def test_parts_are_never_negative_and_sum_to_the_total(requests: list[tuple[int, ...]], instances: int) -> None:
    """Whatever happened, the parts of each request add up to its latency from the intended start, exactly."""
    at = np.cumsum(np.array(requests, np.int64), axis=1).T
    intended, sent, queued, started, ended, done = at.tolist()
    records = records_of(intended, sent, done)
    trace = trace_of([f"run-{k}" for k in range(len(requests))], queued, started, ended)
    parts = split(records, trace, join(records, trace), instances)
    assert parts.record.tolist() == list(range(len(requests)))
    assert parts.batch_wait_ns is not None
    assert parts.instance_wait_ns is not None
    each = [parts.client_ns, parts.network_ns, parts.batch_wait_ns, parts.instance_wait_ns]
    assert all((part >= 0).all() for part in each)
    assert (sum(each) + parts.compute_ns == records.done_ns - records.intended_ns).all()
    means = means_of(parts)
    assert means.batch_wait_ms is not None
    assert means.instance_wait_ms is not None
    assert means.batch_wait_ms + means.instance_wait_ms == pytest.approx(means.queue_ms)


def test_a_sampled_trace_leaves_the_queue_undivided() -> None:
    """One request of two in the trace: it is split, but executions may be missing, so the waits stay together."""
    records = records_of([0, 4], [1, 5], [31, 52])
    joined = join(records, trace := trace_of(["run-1"], [5], [30], [50]))
    parts = split(records, trace, joined, instances=1)
    assert not joined.complete
    assert parts.record.tolist() == [1]
    assert parts.batch_wait_ns is None
    assert means_of(parts).queue_ms == 25
    assert "not divided" in means_of(parts).note


def test_what_did_not_run_has_no_parts() -> None:
    """A request refused or timed out in the queue is joined, but only answered ones are split."""
    records = records_of([0, 1, 2], [0, 1, 2], [20, 21, 3])
    records.status[1:] = STATUSES.index("timeout"), STATUSES.index("rejected")
    trace = trace_of(["run-0", "run-1", "run-2"], [1, 2, 2], [5, -1, -1], [10, 20, 3])
    joined = join(records, trace)
    assert joined.row.tolist() == [0, 1, 2]
    assert split(records, trace, joined, 1).record.tolist() == [0]


def test_records_of_a_client_batch_share_its_request() -> None:
    """Each record waits in the client from its own intended start; the execution's size counts the batch's rows."""
    records = records_of([0, 1, 2, 3], [1, 1, 3, 3], [10, 10, 12, 12])
    records.batch[:] = 2
    trace = trace_of(["run-0", "run-2", "other"], [2, 4, 4], [5, 5, 5], [8, 8, 8])
    joined = join(records, trace)
    assert joined.row.tolist() == [0, 0, 1, 1]
    assert (split(records, trace, joined, 1).client_ns // MS).tolist() == [1, 0, 1, 0]
    assert with_rows(trace, records, joined).batch.tolist() == [5, 5, 5]


def test_without_ids_requests_are_joined_by_their_order() -> None:
    """Equal counts: the k-th sent is the k-th started; two sent closer than the way varies are not certain."""
    records = records_of([0, 10, 20, 30], [20, 0, 10, 30], [29, 9, 19, 39])
    trace = trace_of([""] * 4, [1, 11, 21, 33], [2, 12, 22, 34], [5, 15, 25, 37])
    joined = join(records, trace)
    assert joined.row.tolist() == [2, 0, 1, 3]
    assert (joined.by, joined.certainty, joined.complete) == ("order", 1.0, True)
    close = records_of([0, 1, 20, 30], [0, 1, 20, 30], [30, 31, 40, 50])
    vague = join(close, trace_of([""] * 4, [1, 2, 25, 31], [2, 3, 26, 32], [5, 5, 28, 34]))
    assert vague.certainty == 0.5


def test_by_order_what_failed_may_be_missing_and_no_more() -> None:
    """Executions as many as answers are joined though a refused request left no trace; other counts are refused."""
    records = records_of([0, 10, 20], [0, 10, 20], [9, 19, 29])
    records.status[1] = STATUSES.index("rejected")
    joined = join(records, trace := trace_of(["", ""], [1, 21], [2, 22], [5, 25]))
    assert joined.row.tolist() == [0, -1, 1]
    records.status[1] = OK
    with pytest.raises(InvalidInput, match="2 requests of model 'm', 2 of them executed, the records have 3 sent"):
        join(records, trace)


def test_a_pair_that_cannot_be_is_left_out() -> None:
    """By order, a request that took longer in the server than its client waited is somebody else's."""
    records = records_of([0, 10], [0, 10], [9, 12])
    joined = join(records, trace_of(["", ""], [1, 11], [2, 12], [5, 90]))
    assert joined.row.tolist() == [0, -1]
    assert not joined.complete


def test_the_trace_of_something_else_is_refused() -> None:
    """Another model, another run, or one id twice: one sentence that says what is there and what was expected."""
    records = records_of([0], [0], [9])
    with pytest.raises(InvalidInput, match=r"no request of model 'm', only of \['other'\]"):
        join(records, trace_of(["run-0"], [1], [2], [5], model="other"))
    with pytest.raises(InvalidInput, match="'old-0', but none of this run: expected ids such as 'run-0'"):
        join(records, trace_of(["old-0"], [1], [2], [5]))
    with pytest.raises(InvalidInput, match="'run-0' stands in the trace more than once"):
        join(records, trace_of(["run-0", "run-0"], [1, 1], [2, 2], [5, 5]))
    with pytest.raises(InvalidInput, match="instances are 0"):
        split(records, trace := trace_of(["run-0"], [1], [2], [5]), join(records, trace), 0)


def test_ids_of_another_run_under_the_same_name_show() -> None:
    """A request that its client did not wait long enough for is not this run's, though its id is."""
    records = records_of([0, 10], [0, 10], [9, 19])
    with pytest.raises(InvalidInput, match="run-1 was longer in the server than its client waited, as were 0 others"):
        join(records, trace_of(["run-0", "run-1"], [1, 11], [2, 12], [5, 90]))


def test_an_answer_before_the_executions_end_ends_the_compute() -> None:
    """The answer leaves before the server notes the end: no part is negative, and the sum stays the total."""
    records = records_of([0], [0], [9])
    trace = trace_of(["run-0"], [1], [2], [12])
    trace.compute_output_start_ns[:] = CLOCK + 7 * MS
    parts = split(records, trace, join(records, trace), 1)
    assert parts.network_ns.tolist() == [0]
    assert (parts.compute_output_ns // MS).tolist() == [3]
    assert (parts.total_ns // MS).tolist() == [9]


def test_the_clocks_are_laid_beside_each_other() -> None:
    """The bounds hold the true distance of the clocks; there are none when no constant fits."""
    records = records_of([0, 10], [0, 10], [9, 19])
    trace = trace_of(["run-0", "run-1"], [1, 11], [2, 12], [5, 15])
    bounds = clock_offset_ns(records, trace, join(records, trace))
    assert bounds is not None
    assert bounds[0] <= CLOCK <= bounds[1]
    drifted = trace_of(["run-0", "run-1"], [1, 111], [2, 112], [5, 115])
    assert clock_offset_ns(records, drifted, join(records, drifted)) is None


def test_means_from_statistics_alone() -> None:
    """Without a trace the parts come from the differences of the server's counters; the queue is one part."""
    before, after = ModelStatistics(), ModelStatistics()
    for name, ms in (("queue", 6), ("compute_input", 1), ("compute_infer", 10), ("compute_output", 1)):
        old, new = getattr(before.inference_stats, name), getattr(after.inference_stats, name)
        old.count, old.ns, new.count, new.ns = 10, 7 * MS, 12, 7 * MS + 2 * ms * MS
    records = records_of([0, 0], [1, 3], [21, 25])
    means = means_from_statistics(records, before, after)
    assert (means.client_ms, means.queue_ms, means.compute_ms, means.network_ms) == (2, 6, 12, 3)
    assert (means.batch_wait_ms, means.requests, means.server_requests) == (None, 2, 2)
    assert "not divided" in means.note


def test_instances_are_counted_as_served() -> None:
    """The count of each group on each GPU it names; no group is one instance."""
    gpu, cpu = ModelInstanceGroup.Kind.KIND_GPU, ModelInstanceGroup.Kind.KIND_CPU
    assert instance_count(ModelConfig()) == 1
    config = ModelConfig()
    config.instance_group.add(count=2, kind=gpu, gpus=[0, 1])
    config.instance_group.add(count=3, kind=cpu)
    config.instance_group.add(count=9, kind=cpu, passive=True)
    assert instance_count(config) == 7
