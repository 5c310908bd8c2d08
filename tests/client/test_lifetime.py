"""What a client holds: nothing after it is closed, no more connections than allowed, and no time asleep."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import psutil
import pytest

from tritonbatch.client import AsyncClient, Client, Connections, InvalidInput, Protocol, Retry
from tritonbatch.server import EmbeddedServer

TIMES = 1000
ALLOWED = 8
"""So many descriptors or threads may stay: gRPC keeps a few for the whole process."""


def until(is_so: Callable[[], bool]) -> bool:
    """Whether *is_so* became true within ten seconds."""
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_so()


def held() -> tuple[int, int]:
    """The open descriptors and the threads of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd")), psutil.Process().num_threads()  # noqa: PTH208 - only their number


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


def use_blocking(url: str, protocol: Protocol, times: int) -> None:
    """Make a client, use it once and close it, many times."""
    for _ in range(times):
        with Client(url, protocol=protocol) as client:
            assert client.ready()


def use_awaiting(url: str, protocol: Protocol, times: int) -> None:
    """As use_blocking, in one event loop."""

    async def steps() -> None:
        for _ in range(times):
            async with AsyncClient(url, protocol=protocol) as client:
                assert await client.ready()

    asyncio.run(steps())


@pytest.mark.triton
@pytest.mark.parametrize("use", [use_blocking, use_awaiting])
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_thousand_clients_leave_nothing_behind(
    client_server: EmbeddedServer, protocol: Protocol, use: Callable[[str, Protocol, int], None]
) -> None:
    """After a thousand clients as many descriptors are open, and as many threads there are, as after a few."""
    url = url_of(client_server, protocol)
    use(url, protocol, 3)
    descriptors, threads = held()
    use(url, protocol, TIMES)
    assert until(lambda: held()[0] <= descriptors + ALLOWED), f"{held()[0]} descriptors, {descriptors} before"
    assert until(lambda: held()[1] <= threads + ALLOWED), f"{held()[1]} threads, {threads} before"


@pytest.mark.triton
@pytest.mark.parametrize("used", [True, False], ids=["used", "unused"])
def test_a_closed_client_says_so(connect: Callable[..., Any], *, used: bool) -> None:
    """After close(), which may be called twice, a request is the caller's mistake: it is not tried again."""
    client, x = connect(), {"x": np.ones((1, 1), np.float32)}
    if used:
        client.infer("free", x)
    client.close()
    client.close()
    for call in (lambda: client.infer("free", x), lambda: client.metadata("free")):
        with pytest.raises(InvalidInput, match="client is closed"):
            call()


@pytest.mark.triton
def test_a_closed_client_is_not_a_server_that_is_down(connect: Callable[..., Any]) -> None:
    """Readiness of a closed client is a mistake, no False."""
    client = connect()
    assert client.ready()
    client.close()
    with pytest.raises(InvalidInput, match="client is closed"):
        client.ready()


def test_a_closed_client_is_not_entered() -> None:
    """A with block around a client that was closed before says so at once."""
    client = Client("localhost:1")
    client.close()
    with pytest.raises(InvalidInput, match="client is closed"):
        client.__enter__()

    async def awaited() -> None:
        other = AsyncClient("localhost:1")
        await other.close()
        with pytest.raises(InvalidInput, match="client is closed"):
            await other.__aenter__()

    asyncio.run(awaited())


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.filterwarnings("error")
def test_another_event_loop_is_refused(client_server: EmbeddedServer, protocol: Protocol) -> None:
    """An AsyncClient belongs to the loop of its first call; elsewhere it raises at once, and leaves nothing behind."""
    client, x = AsyncClient(url_of(client_server, protocol), protocol=protocol), {"x": np.ones((1, 1), np.float32)}
    first = asyncio.new_event_loop()
    try:
        assert first.run_until_complete(client.infer("free", x))["y"].item() == 1
        for call in (client.infer, client.infer_many):
            with pytest.raises(InvalidInput, match="belongs to another event loop: make one per loop"):
                asyncio.run(call("free", x))  # type: ignore[arg-type]
        assert first.run_until_complete(client.infer("free", x))["y"].item() == 1
        first.run_until_complete(client.close())
    finally:
        first.close()
    gc.collect()


# ---- After fork


def in_child(work: Callable[[], object]) -> int:
    """Fork, do *work* there, and give the child's exit code; 0 when *work* returned."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        finally:
            os._exit(code)  # at once: the child shares pytest's files, and all its fixtures
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError("the child hangs")


@pytest.mark.triton
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_client_over_http_may_be_used_on_both_sides_of_a_fork(client_server: EmbeddedServer) -> None:
    """Parent and child ask at once, and each gets its own answers; the child hedges and splits, too."""
    with Client(client_server.http_url, retry=Retry(hedge_after_s=0.5)) as client:

        def work(first: int) -> None:
            for number in range(first, first + 200):
                x = np.full((1, 1), number, np.float32)
                assert client.infer("free", {"x": x})["y"].tolist() == [[number]]
            many = np.arange(40, dtype=np.float32)[:, None]
            assert client.infer_many("free", {"x": many}, in_flight=4)["y"].tolist() == many.tolist()

        work(0)
        with ThreadPoolExecutor(1) as threads:
            forked = threads.submit(in_child, lambda: work(10_000))
            work(20_000)
            assert forked.result(60) == 0
        work(30_000)


@pytest.mark.triton
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_frees_what_threads_of_the_parent_had_locked(client_server: EmbeddedServer) -> None:
    """The child inherits locks that are held and never released there; it has its own, and nothing outstanding."""
    with Client(client_server.http_url, connections=Connections(limit=1)) as client:
        x = {"x": np.ones((1, 1), np.float32)}
        client.infer("free", x)
        core, pool = client._core, client._transport._pools[client.url]  # type: ignore[attr-defined]
        held_open = core.balancer.take(), pool.take(1, time.monotonic() + 1)
        with core.balancer._lock, core._budget._lock, pool._changed:
            assert in_child(lambda: client.infer("free", x)) == 0
        core.balancer.done(held_open[0], healthy=True)
        pool.give_back(held_open[1])
        assert client.infer("free", x)["y"].item() == 1


@pytest.mark.triton
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_client_over_grpc_refuses_after_a_fork(client_server: EmbeddedServer) -> None:
    """In the child gRPC would hang: it is told what to do, and the parent goes on."""
    x = {"x": np.ones((1, 1), np.float32)}
    with Client(client_server.grpc_url, protocol="grpc") as client:
        client.infer("free", x)

        def work() -> None:
            with pytest.raises(InvalidInput, match="make a client in each process"):
                client.infer("free", x)

        assert in_child(work) == 0
        assert client.infer("free", x)["y"].item() == 1


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_threads_of_split_and_hedged_requests_end_with_the_client(
    client_server: EmbeddedServer, protocol: Protocol
) -> None:
    """infer_many and hedging make threads; close() ends them, and an unused client has none."""

    def ours() -> int:
        return sum(thread.name.startswith("tritonbatch-") for thread in threading.enumerate())

    assert until(lambda: ours() == 0)
    x = np.ones((64, 1), np.float32)
    with Client(url_of(client_server, protocol), protocol=protocol, retry=Retry(hedge_after_s=5.0)) as client:
        client.contract("free")
        assert ours() == 0
        client.infer_many("free", {"x": x}, in_flight=4)
        assert ours() > 0
    assert until(lambda: ours() == 0)


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_many_threads_share_one_client(client_server: EmbeddedServer, protocol: Protocol) -> None:
    """Each of 32 threads gets the answers to its own requests, of its own shapes."""
    with Client(url_of(client_server, protocol), protocol=protocol) as client:

        def work(number: int) -> None:
            for size in range(1, 16):
                x = np.full((1 + number % 8, size), number, np.float32)
                got = client.infer("free", {"x": x})["y"]
                assert got.tolist() == [[number * size]] * len(x)

        with ThreadPoolExecutor(32) as pool:
            for done in [pool.submit(work, number) for number in range(32)]:
                done.result(timeout=60)


@pytest.mark.triton
def test_threads_stay_within_the_limit_of_connections(client_server: EmbeddedServer) -> None:
    """With a limit of two, 16 threads have no more than two connections at any time, and all get their answers."""
    others = sockets(client_server)
    most = 0
    with Client(client_server.http_url, connections=Connections(limit=2)) as client, ThreadPoolExecutor(16) as pool:

        def work(number: int) -> float:
            return float(client.infer("free", {"x": np.full((1, 2), number, np.float32)})["y"].item())

        waiting = [pool.submit(work, number) for number in range(200)]
        while not all(each.done() for each in waiting):
            most = max(most, sockets(client_server) - others)
        assert [each.result() for each in waiting] == [2 * number for number in range(200)]
        assert sockets(client_server) - others <= 2
    assert 1 <= most <= 2
    assert until(lambda: sockets(client_server) == others)


@pytest.mark.triton
def test_tasks_stay_within_the_limit_of_connections(client_server: EmbeddedServer) -> None:
    """As with threads."""
    others = sockets(client_server)

    async def steps() -> None:
        async with AsyncClient(client_server.http_url, connections=Connections(limit=2)) as client:

            async def work(number: int) -> float:
                got = await client.infer("free", {"x": np.full((1, 2), number, np.float32)})
                assert sockets(client_server) - others <= 2
                return float(got["y"].item())

            answers = await asyncio.gather(*[work(number) for number in range(50)])
            assert answers == [2 * number for number in range(50)]

    asyncio.run(steps())
    assert until(lambda: sockets(client_server) == others)


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_ordinary_calls_never_sleep(
    client_server: EmbeddedServer, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No call waits by the clock: with sleep forbidden, requests, splits and hedges still work, in both kinds."""
    x = {"x": np.ones((4, 1), np.float32)}
    many = {"x": np.ones((64, 1), np.float32)}
    url, hedging = url_of(client_server, protocol), Retry(hedge_after_s=5.0)

    def forbidden(seconds: float, *_: Any) -> None:
        raise AssertionError(f"slept {seconds} s")

    async def steps() -> None:
        async with AsyncClient(url, protocol=protocol, retry=hedging) as client:
            with monkeypatch.context() as patch:
                patch.setattr(asyncio, "sleep", forbidden)
                assert (await client.infer("free", x))["y"].shape == (4, 1)
                assert (await client.infer_many("free", many))["y"].shape == (64, 1)

    with Client(url, protocol=protocol, retry=hedging) as client, monkeypatch.context() as patch:
        patch.setattr(time, "sleep", forbidden)
        assert client.infer("free", x)["y"].shape == (4, 1)
        assert client.infer_many("free", many)["y"].shape == (64, 1)
        assert client.send(client.request("free", x)).arrays()["y"].shape == (4, 1)
    asyncio.run(steps())


class OneAnswerServer:
    """An HTTP server that promises to keep its connections, and closes each after one answer."""

    def __init__(self) -> None:
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        body = b'{"name":"small","version":"1","extensions":[]}'
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                connection.settimeout(10)
                data = b""
                while not data.endswith(b"\r\n\r\n") and (more := connection.recv(4096)):
                    data += more
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body))

    def close(self) -> None:
        """Stop listening."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


@pytest.fixture
def one_answer() -> Iterator[OneAnswerServer]:
    """A server whose kept connections are stale."""
    running = OneAnswerServer()
    yield running
    running.close()


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize(("retry", "idle_s"), [(Retry(), 0.1), (None, 1.2)])
def test_a_stale_connection_is_replaced_without_an_error(
    one_answer: OneAnswerServer, kind: str, retry: Retry | None, idle_s: float
) -> None:
    """After idling for over a second this needs no retry; before, a retry hides it."""

    async def steps() -> None:
        async with AsyncClient(one_answer.url, retry=retry, timeout_s=20) as client:
            assert (await client.server_metadata()).name == "small"
            await asyncio.sleep(idle_s)
            assert (await client.server_metadata()).name == "small"

    if kind == "asyncio":
        asyncio.run(steps())
    else:
        with Client(one_answer.url, retry=retry, timeout_s=20) as client:
            assert client.server_metadata().name == "small"
            time.sleep(idle_s)
            assert client.server_metadata().name == "small"
    assert one_answer.connections == 2
