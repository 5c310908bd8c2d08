"""What happens to a request that is given up: the server is told where it listens, and the client stays whole."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import psutil
import pytest

from tritonbatch.client import AsyncClient, Client, Connections, Protocol, Retry, TimedOut
from tritonbatch.client.core import Core
from tritonbatch.client.retry import RESERVE
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

ONCE = Retry(attempts=1)
HEDGED = Retry(attempts=1, hedge_after_s=0.05)


def seconds(duration_s: float) -> dict[str, np.ndarray[Any, Any]]:
    """The inputs with which the sleeper takes *duration_s*."""
    return {"x": np.array([[duration_s]], np.float32)}


def until(is_so: Callable[[], bool]) -> bool:
    """Whether *is_so* became true within ten seconds."""
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


class Sleeper:
    """The server's view of the model that sleeps: what waits, what was cancelled, what was done."""

    def __init__(self, server: EmbeddedServer) -> None:
        self._server = server

    def can_be_seen(self) -> bool:
        """Whether the server's metrics answer yet: it is ready a moment before they are."""
        try:
            self.waiting()
        except OSError:
            return False
        return True

    def waiting(self) -> float:
        """Requests that were accepted and are not answered yet, the running one not counted."""
        return self._metric("nv_inference_pending_request_count{")

    def cancelled(self) -> float:
        """Requests that were taken out because the caller had gone."""
        return self._metric("nv_inference_request_failure{", 'reason="CANCELED"')

    def succeeded(self) -> float:
        """Requests that were answered."""
        return self._metric("nv_inference_request_success{")

    def _metric(self, *parts: str) -> float:
        with urllib.request.urlopen(self._server.metrics_url, timeout=10) as page:  # noqa: S310 - its own server
            lines = page.read().decode().splitlines()
        wanted = (*parts, 'model="sleeper"')
        return sum(float(line.split()[-1]) for line in lines if all(part in line for part in wanted))


@pytest.fixture
def sleeper(client_server: EmbeddedServer) -> Iterator[Sleeper]:
    """The sleeper with nothing to do, before and after."""
    watched = Sleeper(client_server)
    assert until(watched.can_be_seen)
    with Client(client_server.http_url) as client:
        assert until(lambda: watched.waiting() == 0)
        client.infer("sleeper", seconds(0))  # behind whatever still runs
        client.settled_statistics("sleeper")
        yield watched
        assert until(lambda: watched.waiting() == 0)
        client.infer("sleeper", seconds(0))


def url_of(server: EmbeddedServer, protocol: Protocol) -> str:
    """The server's address for *protocol*."""
    return server.grpc_url if protocol == "grpc" else server.http_url


def sockets(server: EmbeddedServer) -> int:
    """How many connections of this process to the server's HTTP port are open."""
    connections = psutil.Process().net_connections("tcp")
    return sum(
        each.status == psutil.CONN_ESTABLISHED and bool(each.raddr) and each.raddr.port == server.ports.http
        for each in connections
    )


def test_cancelling_a_task_over_grpc_takes_its_request_out_of_the_queue(
    client_server: EmbeddedServer, sleeper: Sleeper
) -> None:
    """The server drops the queued request and counts it as cancelled; the running one is answered."""
    before = sleeper.cancelled()

    async def steps() -> None:
        async with AsyncClient(client_server.grpc_url, protocol="grpc", retry=ONCE) as client:
            running = asyncio.ensure_future(client.infer("sleeper", seconds(0.5)))
            await asyncio.sleep(0.1)
            queued = asyncio.ensure_future(client.infer("sleeper", seconds(0.5)))
            assert await asyncio.to_thread(until, lambda: sleeper.waiting() >= 1)
            queued.cancel()
            with pytest.raises(asyncio.CancelledError):
                await queued
            assert (await running)["y"].shape == (1, 1)
            assert (await client.infer("sleeper", seconds(0)))["y"].tolist() == [[0]]

    asyncio.run(steps())
    assert until(lambda: sleeper.cancelled() == before + 1)


def test_cancelling_a_task_over_http_closes_its_connection(client_server: EmbeddedServer, sleeper: Sleeper) -> None:
    """The connection is closed and not used again; Triton does not look, and does the request all the same."""
    before, done = sleeper.cancelled(), sleeper.succeeded()

    async def steps() -> None:
        others = sockets(client_server)
        async with AsyncClient(client_server.http_url, retry=ONCE) as client:
            await client.infer("free", seconds(1))
            assert sockets(client_server) == others + 1
            task = asyncio.ensure_future(client.infer("sleeper", seconds(0.2)))
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.sleep(0)
            assert await asyncio.to_thread(until, lambda: sockets(client_server) == others)
            for number in range(3):
                assert (await client.infer("free", seconds(number)))["y"].tolist() == [[number]]
            assert sockets(client_server) == others + 1

    asyncio.run(steps())
    assert until(lambda: sleeper.succeeded() == done + 1)
    assert sleeper.cancelled() == before


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_timeout_of_asyncio_around_a_call_leaves_the_client_usable(
    client_server: EmbeddedServer, sleeper: Sleeper, protocol: Protocol
) -> None:
    """asyncio.timeout ends the wait with its own error; with one connection the next call still finds it free."""

    async def steps() -> None:
        url, connections = url_of(client_server, protocol), Connections(limit=1)
        async with AsyncClient(url, protocol=protocol, connections=connections) as client:
            await client.contract("sleeper")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await client.infer("sleeper", seconds(0.3))
            assert (await client.infer("free", seconds(2), timeout_s=20))["y"].tolist() == [[2]]

    asyncio.run(steps())


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_cancelling_infer_many_leaves_no_task_behind(
    client_server: EmbeddedServer, sleeper: Sleeper, protocol: Protocol
) -> None:
    """All its requests are given up with it, and those that had not left never do."""
    done = sleeper.succeeded()

    async def steps() -> None:
        async with AsyncClient(url_of(client_server, protocol), protocol=protocol) as client:
            await client.contract("sleeper")
            whole = asyncio.ensure_future(client.infer_many("sleeper", {"x": np.full((50, 1), 0.1, np.float32)}))
            await asyncio.sleep(0.15)
            whole.cancel()
            with pytest.raises(asyncio.CancelledError):
                await whole
            assert asyncio.all_tasks() == {asyncio.current_task()}
            assert (await client.infer("free", seconds(2)))["y"].tolist() == [[2]]

    asyncio.run(steps())
    assert until(lambda: sleeper.waiting() == 0)
    assert sleeper.succeeded() - done <= 5


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_deadline_that_passes_leaves_the_client_usable(
    client_server: EmbeddedServer, sleeper: Sleeper, protocol: Protocol
) -> None:
    """Out of time a blocking call is TimedOut, its connection is not used again, and the next call works."""
    with Client(url_of(client_server, protocol), protocol=protocol, connections=Connections(limit=1)) as client:
        client.contract("sleeper")
        with pytest.raises(TimedOut):
            client.infer("sleeper", seconds(0.4), timeout_s=0.1)
        assert client.infer("free", seconds(2), timeout_s=20)["y"].tolist() == [[2]]


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_ctrl_c_in_a_blocking_call_leaves_the_client_whole(
    client_server: EmbeddedServer, sleeper: Sleeper, protocol: Protocol
) -> None:
    """KeyboardInterrupt ends the wait; with room for one connection, the next calls still find it free."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with Client(url_of(client_server, protocol), protocol=protocol, connections=Connections(limit=1)) as client:
            client.contract("sleeper")
            for _ in range(2):
                timer = threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGUSR1))
                timer.start()
                with pytest.raises(KeyboardInterrupt):
                    client.infer("sleeper", seconds(0.4))
                timer.join(10)
                assert client.infer("free", seconds(2), timeout_s=20)["y"].tolist() == [[2]]
                assert client._core.balancer.endpoints[0].outstanding == 0
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_hedge_that_lost_is_taken_out_of_the_queue(
    client_server: EmbeddedServer, sleeper: Sleeper, kind: str
) -> None:
    """The first request wins while the second still waits behind another; it is cancelled on the server."""
    before = sleeper.cancelled()
    retry = Retry(attempts=1, hedge_after_s=0.3)
    with Client(client_server.grpc_url, protocol="grpc", retry=ONCE) as other:
        other.contract("sleeper")
        between = threading.Timer(0.15, other.infer, ("sleeper", seconds(0.5)))
        between.start()
        if kind == "threads":
            with Client(client_server.grpc_url, protocol="grpc", retry=retry) as client:
                assert client.infer("sleeper", seconds(0.6))["y"].shape == (1, 1)
                assert until(lambda: client._core.balancer.endpoints[0].outstanding == 0)
        else:
            asyncio.run(_hedged_once(client_server.grpc_url, retry))
        between.join(20)
        assert until(lambda: sleeper.cancelled() == before + 1)


async def _hedged_once(url: str, retry: Retry) -> None:
    """The same steps, awaited; no task is left."""
    async with AsyncClient(url, protocol="grpc", retry=retry) as client:
        assert (await client.infer("sleeper", seconds(0.6)))["y"].shape == (1, 1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert client._core.balancer.endpoints[0].outstanding == 0


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_the_connection_of_a_winner_is_used_again(client_server: EmbeddedServer, sleeper: Sleeper, kind: str) -> None:
    """Cancelling the loser closes the loser's connection alone: the next requests, sent once, all succeed."""
    x = seconds(0.1)
    if kind == "threads":
        with Client(client_server.http_url, retry=HEDGED) as client:
            for number in range(10):
                assert client.infer("free", seconds(number))["y"].tolist() == [[number]]
                if number % 4 == 0:
                    client.infer("sleeper", x)
    else:
        asyncio.run(_hedged_by_asyncio(client_server.http_url))


async def _hedged_by_asyncio(url: str) -> None:
    """The same steps, awaited."""
    async with AsyncClient(url, retry=HEDGED) as client:
        for number in range(10):
            assert (await client.infer("free", seconds(number)))["y"].tolist() == [[number]]
            if number % 4 == 0:
                await client.infer("sleeper", seconds(0.1))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_hedge_that_lost_says_nothing_against_its_server(
    client_server: EmbeddedServer, protocol: Protocol, kind: str
) -> None:
    """The loser was broken off by us: it is not tried again, costs its hedge alone, and its endpoint does not rest."""
    retry = Retry(hedge_after_s=0.05)
    if kind == "threads":
        with Client(url_of(client_server, protocol), protocol=protocol, retry=retry) as client:
            client.infer("sleeper", seconds(0.2))
            assert until(lambda: client._core.balancer.endpoints[0].outstanding == 0)
            core = client._core
    else:
        core = asyncio.run(_hedged_core(url_of(client_server, protocol), protocol, retry))
    assert core.balancer.endpoints[0].failures == 0
    assert core._budget._tokens == pytest.approx(RESERVE - 1 + retry.budget_ratio)


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_hedging_every_request_fails_none(client_server: EmbeddedServer, kind: str) -> None:
    """Losers are broken off as they end, hundreds of times over HTTP: no request meets a connection that was shut."""
    retry = Retry(attempts=1, hedge_after_s=1e-5, budget_ratio=2.0)
    if kind == "threads":
        with Client(client_server.http_url, retry=retry) as client:
            for number in range(400):
                assert client.infer("free", seconds(number))["y"].tolist() == [[number]]
    else:
        asyncio.run(_hedging_all(client_server.http_url, retry))


async def _hedging_all(url: str, retry: Retry) -> None:
    """The same, awaited."""
    async with AsyncClient(url, retry=retry) as client:
        for number in range(400):
            assert (await client.infer("free", seconds(number)))["y"].tolist() == [[number]]


async def _hedged_core(url: str, protocol: Protocol, retry: Retry) -> Core:
    """What is left after a hedged call."""
    async with AsyncClient(url, protocol=protocol, retry=retry) as client:
        await client.infer("sleeper", seconds(0.2))
        return client._core
