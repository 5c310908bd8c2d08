"""Where one call's time went, by the real server's own statistics."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelStatistics

from tritonbatch.client import AsyncClient, Client, Options, Protocol, Unreachable
from tritonbatch.client import timing as module
from tritonbatch.client.timing import Timing, infer_timed, infer_timed_async, timing_between
from tritonbatch.server import EmbeddedServer

BOTH = pytest.mark.parametrize("protocol", ["http", "grpc"])


def url(server: EmbeddedServer, protocol: Protocol) -> str:
    """The server's address for *protocol*."""
    return server.http_url if protocol == "http" else server.grpc_url


def seconds(value: float) -> dict[str, Any]:
    """The input that keeps `sleeper` busy for *value* seconds."""
    return {"x": np.array([[value]], np.float32)}


def parts_ms(timing: Timing) -> list[float]:
    """The figures that add up to the total, all of which must be there."""
    parts = (timing.queue_ms, timing.compute_input_ms, timing.compute_infer_ms, timing.compute_output_ms)
    found = [part for part in (*parts, timing.network_ms) if part is not None]
    assert len(found) == 5
    return found


@pytest.mark.triton
@BOTH
def test_the_time_of_one_call_is_where_it_was_spent(client_server: EmbeddedServer, protocol: Protocol) -> None:
    """A call that sleeps spends its time in the model; the parts are its own and no more than the total."""
    with Client(url(client_server, protocol), protocol=protocol) as client:
        client.infer("sleeper", seconds(0))  # not counted yet, perhaps, when the timed call begins
        outputs, timing = infer_timed(client, "sleeper", seconds(0.2), timeout_s=10, options=Options(version="1"))
        assert outputs["y"].shape == (1, 1)
        assert timing.requests == 1
        assert timing.compute_infer_ms is not None
        assert timing.compute_infer_ms >= 199
        assert min(parts_ms(timing)) >= 0
        # The server goes on counting for a moment after the answer has left.
        assert sum(parts_ms(timing)) <= timing.total_ms + 50
        outputs, timing = infer_timed(client, "sleeper", {"x": np.zeros(1, np.float32)}, add_batch_axis=True)
        assert outputs["y"].shape == (1,)
        assert timing.requests == 1


@pytest.mark.triton
@BOTH
def test_a_call_that_had_to_queue_shows_it(client_server: EmbeddedServer, protocol: Protocol) -> None:
    """Of two calls at once the later one waits: its figures are the means of both, and hold half the first's sleep."""

    async def run() -> list[Timing]:
        async with AsyncClient(url(client_server, protocol), protocol=protocol) as client:
            calls = [infer_timed_async(client, "sleeper", seconds(0.5)) for _ in range(2)]
            return [timing for _, timing in await asyncio.wait_for(asyncio.gather(*calls), 60)]

    first, second = sorted(asyncio.run(run()), key=lambda timing: timing.total_ms)
    assert (first.requests, second.requests) == (1, 2)
    assert first.queue_ms is not None
    assert second.queue_ms is not None
    assert second.queue_ms > max(first.queue_ms, 100)
    assert second.total_ms > first.total_ms


@pytest.mark.triton
def test_what_the_server_does_not_count_is_unknown(
    client_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics that do not move, or cannot be read after the call, cost the figures but not the answer."""
    monkeypatch.setattr(module, "COUNTED_READINGS", 2)
    with Client(client_server.http_url) as client:
        still = client.statistics("half")
        readings = [0]

        async def statistics(model: str, version: str) -> dict[str, ModelStatistics]:
            readings[0] += 1
            if readings[0] > 4:
                raise Unreachable("gone")
            return {"a": still}

        monkeypatch.setattr(client._core, "statistics_by_address", statistics)
        for expected_readings in (4, 7):  # two that agree before, two in vain after; then again none after
            if expected_readings == 7:
                readings[0] = 2
            outputs, timing = infer_timed(client, "half", {"x": np.ones((1, 1), np.float16)})
            assert outputs["y"].tolist() == [[1]]
            assert timing == Timing(total_ms=timing.total_ms)


@pytest.mark.triton
def test_a_replica_that_comes_back_does_not_count(
    client_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its whole history is no part of the call: only replicas that answered before and after are compared."""
    with Client(client_server.http_url) as client:
        client.infer("half", {"x": np.ones((1, 1), np.float16)})
        counted, nothing = client.settled_statistics("half"), ModelStatistics()
        readings = [{"a": nothing}, {"a": nothing}, {"a": nothing, "b": counted}, {"b": counted}]

        async def statistics(model: str, version: str) -> dict[str, ModelStatistics]:
            return readings.pop(0) if len(readings) > 1 else readings[0]

        monkeypatch.setattr(module, "COUNTED_READINGS", 3)
        monkeypatch.setattr(client._core, "statistics_by_address", statistics)
        assert infer_timed(client, "half", {"x": np.ones((1, 1), np.float16)})[1].requests == 0


def test_a_restarted_server_gives_no_figures() -> None:
    """Counters that went back say nothing of the call."""
    before, after = ModelStatistics(), ModelStatistics()
    before.inference_stats.success.count = 5
    after.inference_stats.success.count = 1
    assert timing_between(3.0, before, after) == Timing(total_ms=3.0)


def test_several_requests_give_their_mean() -> None:
    """Each part is divided by the requests counted, and what the server does not explain is never negative."""
    after = ModelStatistics()
    stats = after.inference_stats
    for part, ms in (("success", 20), ("queue", 8), ("compute_input", 2), ("compute_infer", 6), ("compute_output", 4)):
        getattr(stats, part).count = 2
        getattr(stats, part).ns = ms * 1_000_000
    timing = timing_between(9.0, ModelStatistics(), after)
    assert timing == Timing(
        total_ms=9.0,
        requests=2,
        queue_ms=4.0,
        compute_input_ms=1.0,
        compute_infer_ms=3.0,
        compute_output_ms=2.0,
        network_ms=0.0,
    )
