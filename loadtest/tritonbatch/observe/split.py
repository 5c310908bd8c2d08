"""Where a request's latency went: client, network, waiting for the batch, waiting for an instance, compute. Pure.

The rule for the two waits: of the time between a request's entry into the queue and the start of its execution, what
passed while all of the model's instances were executing is the wait for an instance, the rest (an instance was idle, so
the batcher held the request back) is the wait for the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup
from tritonclient.grpc.service_pb2 import ModelStatistics, StatisticDuration

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.records import OK, Records
from tritonbatch.observe.join import Joined
from tritonbatch.observe.trace import Trace

Numbers = npt.NDArray[np.int64]
NS_PER_MS = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """The parts of each answered and traced request's latency, in nanoseconds; ``record`` is the record's index.

    ``client_ns`` is the time from the intended start to the sending, ``network_ns`` all between sending and answer
    that is neither queue nor compute (the wire, and both ends' reading and writing). ``instance_wait_ns`` is None, and
    the queue undivided, where the trace did not show every execution.
    """

    record: Numbers
    client_ns: Numbers
    network_ns: Numbers
    queue_ns: Numbers
    instance_wait_ns: Numbers | None
    compute_input_ns: Numbers
    compute_infer_ns: Numbers
    compute_output_ns: Numbers

    @property
    def batch_wait_ns(self) -> Numbers | None:
        """The wait for the batch: the queue without the wait for an instance."""
        return None if self.instance_wait_ns is None else self.queue_ns - self.instance_wait_ns

    @property
    def compute_ns(self) -> Numbers:
        """The execution, from the gathering of the inputs to the last output."""
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns

    @property
    def total_ns(self) -> Numbers:
        """The latency from the intended start: exactly the sum of the parts."""
        return self.client_ns + self.network_ns + self.queue_ns + self.compute_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """The mean of each part per answered request, in milliseconds; the two waits are None where not told apart.

    ``requests`` is how many records the client's parts are means of, ``server_requests`` how many requests the
    server's are: where they differ (client-side batches, or traffic of others), the parts are of different requests.
    """

    client_ms: float
    network_ms: float
    queue_ms: float
    batch_wait_ms: float | None
    instance_wait_ms: float | None
    compute_ms: float
    requests: int
    server_requests: int

    @property
    def note(self) -> str:
        """What the reader must know about the queue's two waits."""
        if self.batch_wait_ms is None:
            return "The queue is not divided into its two waits: that takes Triton's trace of every request (rate 1)."
        return "Waiting for an instance is the time in the queue while all instances were executing."


def split(records: Records, trace: Trace, joined: Joined, instances: int) -> Split:
    """Split the latency of every record with a usable answer whose execution is in *trace*.

    *instances* is how many executions of the model can run at once (see :func:`instance_count`).

    Raises:
        InvalidInput: *instances* is less than 1.
    """
    if instances < 1:
        raise InvalidInput(f"The instances are {instances}: expected at least 1, as the served configuration says.")
    known = (joined.row >= 0) & (records.status == OK)
    known[known] = trace.compute_end_ns[joined.row[known]] >= 0
    record = np.flatnonzero(known)
    rows = joined.row[record]
    answered_ns: Numbers = (records.done_ns - records.sent_ns)[record]
    queued_ns, started_ns = trace.queue_start_ns[rows], trace.compute_start_ns[rows]
    input_end_ns, output_start_ns = _ordered(trace, rows)
    # The answer leaves while the execution's end is still to be noted, and may come in before; compute ends with it.
    ended_ns: Numbers = np.minimum(trace.compute_end_ns[rows], np.maximum(output_start_ns, queued_ns + answered_ns))
    waited = None
    if joined.complete:
        begin_ns, end_ns = busy_intervals(trace, records.model)
        until = saturated_ns(begin_ns, end_ns, instances, np.concatenate([queued_ns, started_ns]))
        waited = until[len(rows) :] - until[: len(rows)]
    return Split(
        record=record,
        client_ns=(records.sent_ns - records.intended_ns)[record],
        network_ns=answered_ns - (ended_ns - queued_ns),
        queue_ns=started_ns - queued_ns,
        instance_wait_ns=waited,
        compute_input_ns=input_end_ns - started_ns,
        compute_infer_ns=output_start_ns - input_end_ns,
        compute_output_ns=ended_ns - output_start_ns,
    )


def _ordered(trace: Trace, rows: Numbers) -> tuple[Numbers, Numbers]:
    """The two moments inside the execution; one that a cut-off trace lacks takes no time."""
    start_ns, end_ns = trace.compute_start_ns[rows], trace.compute_end_ns[rows]
    input_end_ns = np.maximum(trace.compute_input_end_ns[rows], start_ns)
    output_start_ns = trace.compute_output_start_ns[rows]
    return input_end_ns, np.where(output_start_ns >= 0, output_start_ns, end_ns)


def busy_intervals(trace: Trace, model: str) -> tuple[Numbers, Numbers]:
    """Start and end of every execution of *model*, in order of their start."""
    ran = np.flatnonzero((trace.model == model) & (trace.execution >= 0) & (trace.compute_end_ns >= 0))
    first = ran[np.unique(trace.execution[ran], return_index=True)[1]]
    return trace.compute_start_ns[first], trace.compute_end_ns[first]


def saturated_ns(begin_ns: Numbers, end_ns: Numbers, instances: int, at_ns: Numbers) -> Numbers:
    """How long until each moment of *at_ns* at least *instances* of the intervals were running at once.

    The difference between two moments is the saturated time between them.
    """
    if not len(begin_ns):
        return np.zeros(len(at_ns), np.int64)
    moments = np.concatenate([begin_ns, end_ns])
    steps = np.concatenate([np.ones(len(begin_ns), np.int64), np.full(len(end_ns), -1, np.int64)])
    order = np.argsort(moments, kind="stable")
    moments, full = moments[order], np.cumsum(steps[order]) >= instances
    until = np.concatenate([[0], np.cumsum(np.diff(moments) * full[:-1])])
    before = np.searchsorted(moments, at_ns, side="right") - 1
    place = np.maximum(before, 0)
    found: Numbers = np.where(before < 0, 0, until[place] + (at_ns - moments[place]) * full[place])
    return found


def instance_count(config: ModelConfig) -> int:
    """How many executions a served configuration allows at once: the count of each group, on each GPU it names."""
    on_gpus = ModelInstanceGroup.Kind.KIND_GPU
    counts = [
        group.count * (max(1, len(group.gpus)) if group.kind == on_gpus else 1)
        for group in config.instance_group
        if not group.passive
    ]
    return max(1, int(sum(counts)))


def means_of(parts: Split) -> Means:
    """The means of a split; NaN when it is empty."""
    batch_wait_ns = parts.batch_wait_ns
    return Means(
        client_ms=_mean_ms(parts.client_ns),
        network_ms=_mean_ms(parts.network_ns),
        queue_ms=_mean_ms(parts.queue_ns),
        batch_wait_ms=None if batch_wait_ns is None else _mean_ms(batch_wait_ns),
        instance_wait_ms=None if parts.instance_wait_ns is None else _mean_ms(parts.instance_wait_ns),
        compute_ms=_mean_ms(parts.compute_ns),
        requests=len(parts.record),
        server_requests=len(parts.record),
    )


def means_from_statistics(records: Records, before: ModelStatistics, after: ModelStatistics) -> Means:
    """The means without a trace, from two readings of the server's statistics around the run.

    They count per request, so that each request of a batch adds the whole execution: as a request experiences it.
    """
    old, new = before.inference_stats, after.inference_stats
    queue_ms = _between_ms(old.queue, new.queue)
    compute_ms = sum(_between_ms(getattr(old, name), getattr(new, name)) for name in _COMPUTE)
    good = records.status == OK
    answered_ms = _mean_ms((records.done_ns - records.sent_ns)[good])
    return Means(
        client_ms=_mean_ms((records.sent_ns - records.intended_ns)[good]),
        network_ms=answered_ms - queue_ms - compute_ms,
        queue_ms=queue_ms,
        batch_wait_ms=None,
        instance_wait_ms=None,
        compute_ms=compute_ms,
        requests=int(good.sum()),
        server_requests=int(new.queue.count - old.queue.count),
    )


_COMPUTE = ("compute_input", "compute_infer", "compute_output")


def _between_ms(old: StatisticDuration, new: StatisticDuration) -> float:
    count = new.count - old.count
    return float(new.ns - old.ns) / count / NS_PER_MS if count > 0 else float("nan")


def _mean_ms(ns: Numbers) -> float:
    return float(ns.mean()) / NS_PER_MS if len(ns) else float("nan")
