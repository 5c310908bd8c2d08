"""What the server did between two readings of its statistics. Pure.

``batch_stats`` count executions, so a difference of their times over a difference of their counts is t(B).
``inference_stats`` count requests: every request of a batch adds the whole batch's time there, so they never give t(B).
"""

from __future__ import annotations

from dataclasses import dataclass

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
