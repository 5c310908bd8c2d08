"""One call and where its time went: on the way, in the queue, and in the three stages of the execution."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tritonclient.grpc.service_pb2 import ModelStatistics

from tritonbatch.client.async_client import AsyncClient
from tritonbatch.client.client import DEFAULT_OPTIONS, Client
from tritonbatch.client.core import Core
from tritonbatch.client.counters import NS_PER_MS, summed
from tritonbatch.client.options import Options
from tritonbatch.client.tensors import Array, Inputs
from tritonbatch.client.transport import finished
from tritonbatch.errors import RequestFailed

COUNTED_WAIT_S, COUNTED_READINGS = 0.025, 40
"""How often, and how many times at most, the statistics are read until they hold what has happened."""


Reading = dict[str, ModelStatistics]
"""The statistics of every endpoint that answers, by its address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Where the milliseconds of one call went.

    ``total_ms`` is the client's own clock around the call. The others come from the server's statistics before and
    after it: ``queue_ms`` is the wait for an instance, ``compute_*_ms`` the stages of the execution, ``network_ms`` all
    of the total that is not the server's (connecting, serialising, the way there and back).

    ``requests`` is how many requests the server counted between the two readings. With 1 the figures are this call's
    own; with more they are the means over all of those, other callers' included. With 0 the server did not count the
    call in time (or the statistics could not be read), and its figures are None.
    """

    total_ms: float
    requests: int = 0
    queue_ms: float | None = None
    compute_input_ms: float | None = None
    compute_infer_ms: float | None = None
    compute_output_ms: float | None = None
    network_ms: float | None = None


def timing_between(total_ms: float, before: ModelStatistics, after: ModelStatistics) -> Timing:
    """The timing of a call that took *total_ms*, from the model's statistics before and after it. Pure."""
    old, new = before.inference_stats, after.inference_stats
    requests = int(new.success.count) - int(old.success.count)
    if requests <= 0:  # less than before: the server was restarted
        return Timing(total_ms=total_ms)

    def mean_ms(part: str) -> float:
        return float(getattr(new, part).ns - getattr(old, part).ns) / requests / NS_PER_MS

    return Timing(
        total_ms=total_ms,
        requests=requests,
        queue_ms=mean_ms("queue"),
        compute_input_ms=mean_ms("compute_input"),
        compute_infer_ms=mean_ms("compute_infer"),
        compute_output_ms=mean_ms("compute_output"),
        network_ms=max(0.0, total_ms - mean_ms("success")),  # a mean over others may exceed this call
    )


def infer_timed(
    client: Client,
    model: str,
    inputs: Inputs,
    *,
    add_batch_axis: bool = False,
    timeout_s: float | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> tuple[dict[str, Array], Timing]:
    """As ``client.infer``, with the outputs also where the time went; see :class:`Timing` for what the figures mean.

    It asks for the statistics before and after, outside of the total: meant for looking, not for production. Servers
    count shortly after they answer, so it waits for that for up to a second more, whatever *timeout_s* is. Of several
    servers it needs only one that answers.

    Raises:
        RequestFailed: as ``client.infer``; also when the statistics cannot be read before the call.
    """
    return finished(_timed(client._core, model, inputs, options, timeout_s, add_batch_axis=add_batch_axis))  # noqa: SLF001


async def infer_timed_async(
    client: AsyncClient,
    model: str,
    inputs: Inputs,
    *,
    add_batch_axis: bool = False,
    timeout_s: float | None = None,
    options: Options = DEFAULT_OPTIONS,
) -> tuple[dict[str, Array], Timing]:
    """As :func:`infer_timed`, for an AsyncClient."""
    return await _timed(client._core, model, inputs, options, timeout_s, add_batch_axis=add_batch_axis)  # noqa: SLF001


async def _timed(
    core: Core, model: str, inputs: Inputs, options: Options, timeout_s: float | None, *, add_batch_axis: bool
) -> tuple[dict[str, Array], Timing]:
    await core.contract(model, options.version)  # asked for once, which is no part of any call's time
    before = await _settled(core, model, options.version)
    start = time.perf_counter()
    outputs = await core.infer(model, inputs, options, timeout_s, add_batch_axis=add_batch_axis)
    total_ms = (time.perf_counter() - start) * 1e3
    try:
        after = await _counted(core, model, options.version, before)
    except RequestFailed:  # the answer is worth more than its timing
        after = before
    both = [address for address in before if address in after]  # a replica may have died, or come back, meanwhile
    if not both:
        return outputs, Timing(total_ms=total_ms)
    readings = [summed([reading[address] for address in both]) for reading in (before, after)]
    return outputs, timing_between(total_ms, *readings)


async def _settled(core: Core, model: str, version: str) -> Reading:
    """The statistics once two readings agree, lest a call answered just now be counted as the one to come."""
    last = await core.statistics_by_address(model, version)
    for _ in range(COUNTED_READINGS):
        await core.transport.sleep(COUNTED_WAIT_S)
        now = await core.statistics_by_address(model, version)
        if now == last:
            break
        last = now
    return last


async def _counted(core: Core, model: str, version: str, before: Reading) -> Reading:
    """The statistics once the server has counted a success since *before*, or after a second the last reading."""
    for _ in range(COUNTED_READINGS):
        now = await core.statistics_by_address(model, version)
        if any(_successes(now[address]) != _successes(before[address]) for address in now if address in before):
            return now
        await core.transport.sleep(COUNTED_WAIT_S)
    return now


def _successes(statistics: ModelStatistics) -> int:
    return int(statistics.inference_stats.success.count)
