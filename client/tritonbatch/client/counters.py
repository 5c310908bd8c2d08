"""What the server did between two readings of its statistics. Pure.

``batch_stats`` count executions, so a difference of their times over a difference of their counts is t(B).
``inference_stats`` count requests: every request of a batch adds the whole batch's time there, so they never give t(B).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import Message
from tritonclient.grpc.service_pb2 import InferBatchStatistics, ModelStatistics

NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Executions:
    """The executions of one batch size: how many there were, and what one took.

    ``occupancy_ms`` is compute input + infer + output, the mean time that one execution kept its instance busy.
    """

    batch_size: int
    count: int
    occupancy_ms: float


def executions_between(before: ModelStatistics, after: ModelStatistics) -> tuple[Executions, ...]:
    """The executions between two readings, one entry per batch size that occurred, in order of size."""
    earlier = {entry.batch_size: entry for entry in before.batch_stats}
    found = []
    for entry in sorted(after.batch_stats, key=lambda each: int(each.batch_size)):
        base = earlier.get(entry.batch_size, InferBatchStatistics())
        count = entry.compute_infer.count - base.compute_infer.count
        if count > 0:
            total_ns = _busy_ns(entry) - _busy_ns(base)
            found.append(
                Executions(batch_size=int(entry.batch_size), count=count, occupancy_ms=total_ns / count / NS_PER_MS)
            )
    return tuple(found)


def _busy_ns(entry: InferBatchStatistics) -> int:
    return int(entry.compute_input.ns + entry.compute_infer.ns + entry.compute_output.ns)


def mean_queue_ms(before: ModelStatistics, after: ModelStatistics) -> float:
    """The mean wait per request between two readings, from the scheduler to the execution's start; NaN for none."""
    old, new = before.inference_stats.queue, after.inference_stats.queue
    count = new.count - old.count
    return (new.ns - old.ns) / count / NS_PER_MS if count > 0 else float("nan")


def summed(statistics: Sequence[ModelStatistics]) -> ModelStatistics:
    """The counters of several replicas of one model as if they were one; the last inference is the latest one."""
    total = ModelStatistics()
    total.CopyFrom(statistics[0])
    for other in statistics[1:]:
        total.last_inference = max(total.last_inference, other.last_inference)
        total.inference_count += other.inference_count
        total.execution_count += other.execution_count
        _add(total.inference_stats, other.inference_stats)
        for entry in other.batch_stats:
            same = next((each for each in total.batch_stats if each.batch_size == entry.batch_size), None)
            if same is None:
                total.batch_stats.add().CopyFrom(entry)
            else:
                _add(same, entry)
    return total


def _add(total: Message, other: Message) -> None:
    """Add every count and time; the fields of both are durations, which hold a count and its nanoseconds."""
    for field, value in other.ListFields():
        if field.message_type is not None:
            duration = getattr(total, field.name)
            duration.count += value.count
            duration.ns += value.ns
