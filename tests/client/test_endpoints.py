"""Which server gets a request: decided with a clock by hand, and counted by two real servers, one of which dies."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pytest

from tritonbatch.client import AsyncClient, Client, Protocol, Unreachable, infer_timed, infer_timed_async
from tritonbatch.client.endpoints import REST_FIRST_S, REST_LONGEST_S, Balancer, addresses_of
from tritonbatch.errors import InvalidInput
from tritonbatch.server import EmbeddedServer

GUARD_S = 30.0
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
X = np.ones((1, 4), np.float32)


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    """A clock by hand."""
    return Clock()


def _taken(balancer: Balancer, times: int, *, healthy: bool | None = True) -> str:
    """The addresses that sequential requests get, one letter each."""
    letters = ""
    for _ in range(times):
        endpoint = balancer.take()
        letters += endpoint.address
        balancer.done(endpoint, healthy=healthy)
    return letters


def test_idle_endpoints_take_turns(clock: Clock) -> None:
    """Sequential requests reach every endpoint in turn."""
    assert _taken(Balancer("abc", clock), 7) == "abcabca"


def test_the_endpoint_with_the_fewest_outstanding_is_taken(clock: Clock) -> None:
    """New requests go where the fewest are under way, however the earlier ones ended."""
    balancer = Balancer("ab", clock)
    first, second, third = (balancer.take() for _ in range(3))
    assert first.address + second.address + third.address == "aba"
    balancer.done(first, healthy=True)
    balancer.done(third, healthy=None)
    assert [balancer.take().address for _ in range(3)] == ["a", "b", "a"]


def test_an_endpoint_that_failed_rests_and_is_tried_again_later(clock: Clock) -> None:
    """After a failure an endpoint gets nothing until its rest ends, then one trial, and all again when that is good."""
    balancer = Balancer("ab", clock)
    failed = balancer.take()
    balancer.done(failed, healthy=False)
    assert _taken(balancer, 5) == "bbbbb"
    clock.now_s += REST_FIRST_S
    trial = balancer.take()
    assert trial is failed
    assert [balancer.take().address for _ in range(3)] == ["b", "b", "b"]
    balancer.done(trial, healthy=True)
    assert balancer.take() is failed


@pytest.mark.parametrize(("failures", "rest_s"), [(1, 0.1), (2, 0.2), (3, 0.4), (6, 3.2), (7, 5.0), (5000, 5.0)])
def test_the_rest_doubles_up_to_the_longest(clock: Clock, failures: int, rest_s: float) -> None:
    """Every failed trial doubles the rest, and thousands of them are no trouble."""
    balancer = Balancer("a", clock)
    assert _taken(balancer, failures, healthy=False) == "a" * failures
    assert balancer.endpoints[0].rests_until - clock.now_s == pytest.approx(rest_s)


def test_one_outage_counts_once_however_many_requests_it_breaks(clock: Clock) -> None:
    """Requests that were under way when the endpoint died do not lengthen its rest."""
    balancer = Balancer("ab", clock)
    under_way = [balancer.take() for _ in range(40)]
    for endpoint in under_way:
        balancer.done(endpoint, healthy=endpoint.address == "b")
    assert balancer.endpoints[0].rests_until == pytest.approx(clock.now_s + REST_FIRST_S)
    assert [endpoint.outstanding for endpoint in balancer.endpoints] == [0, 0]


def test_a_trial_that_was_broken_off_leaves_the_endpoint_to_the_next(clock: Clock) -> None:
    """A trial of which nothing is learnt does not keep the endpoint from being tried."""
    balancer = Balancer("ab", clock)
    assert _taken(balancer, 1, healthy=False) + _taken(balancer, 2) == "abb"
    clock.now_s += REST_FIRST_S
    assert _taken(balancer, 1, healthy=None) == "a"
    assert "a" in _taken(balancer, 2)


def test_a_trial_without_end_does_not_keep_the_endpoint_for_ever(clock: Clock) -> None:
    """When the trial's outcome never comes, another is sent after the longest rest."""
    balancer = Balancer("ab", clock)
    assert _taken(balancer, 1, healthy=False) + _taken(balancer, 2) == "abb"
    clock.now_s += REST_FIRST_S
    assert balancer.take().address == "a"
    assert _taken(balancer, 3) == "bbb"
    clock.now_s += REST_LONGEST_S
    assert "a" in {balancer.take().address for _ in range(3)}


def test_when_all_rest_they_are_tried_all_the_same(clock: Clock) -> None:
    """With every endpoint down the one whose rest ends first is tried, and none is forgotten."""
    balancer = Balancer("abc", clock)
    assert sorted(_taken(balancer, 3, healthy=False)) == ["a", "b", "c"]
    assert not balancer.another_is_healthy(balancer.endpoints[0])
    assert [balancer.take().address for _ in range(3)] == ["a", "b", "c"]


def test_another_is_healthy_says_whether_to_wait(clock: Clock) -> None:
    """Another endpoint that does not rest makes waiting needless; a single endpoint has no other."""
    alone, balancer = Balancer("a", clock), Balancer("ab", clock)
    assert balancer.another_is_healthy(balancer.endpoints[0])
    assert not alone.another_is_healthy(alone.endpoints[0])
    balancer.done(balancer.take(), healthy=False)
    assert balancer.another_is_healthy(balancer.endpoints[0])
    assert not balancer.another_is_healthy(balancer.endpoints[1])


def test_sixteen_threads_leave_nothing_outstanding() -> None:
    """Taking and giving back from many threads loses no count, and no endpoint gets more than its share."""
    balancer = Balancer("abcd")

    def work(_: int) -> str:
        endpoint = balancer.take()
        balancer.done(endpoint, healthy=True)
        return endpoint.address

    with ThreadPoolExecutor(16) as threads:
        letters = list(threads.map(work, range(4000)))
    assert [endpoint.outstanding for endpoint in balancer.endpoints] == [0] * 4
    assert min(letters.count(letter) for letter in "abcd") > 500


@pytest.mark.parametrize(
    ("urls", "base_path", "addresses"),
    [
        ("localhost:8000", False, ("localhost:8000",)),
        (["a:1", "b:65535"], False, ("a:1", "b:65535")),
        ("[::1]:8000", False, ("[::1]:8000",)),
        ("host:8000/base/path", True, ("host:8000/base/path",)),
        ("bücher.example:8000", True, ("bücher.example:8000",)),
        ("http://localhost:8000", True, ("localhost:8000",)),
        ("http://localhost:8000/", True, ("localhost:8000",)),
        ("localhost:8001/", False, ("localhost:8001",)),
        (["HTTP://a:1/base/", "b:2"], True, ("a:1/base", "b:2")),
    ],
)
def test_addresses_are_taken_as_they_are(urls: str | list[str], base_path: bool, addresses: tuple[str, ...]) -> None:  # noqa: FBT001
    """One address or several, names and IPv6, with a base path where the protocol has one."""
    assert addresses_of(urls, base_path=base_path) == addresses


@pytest.mark.parametrize(
    ("urls", "base_path"),
    [
        ([], True),
        ("", True),
        (["a:1", ""], True),
        ("http://localhost:8001", False),
        ("https://localhost:8000", True),
        ("localhost:8000,localhost:8001", True),
        (b"localhost:8000", True),
        ("grpc://localhost:8001", False),
        ("localhost", True),
        (":8000", True),
        ("localhost:0", True),
        ("localhost:65536", True),
        ("localhost:-1", True),
        ("localhost:\uff18\uff10", True),
        ("localhost:8000/base", False),
        ("local host:8000", True),
        ("localhost\r\nX-Header: 1:8000", True),
        ("a..b:8000", True),
        (f"{'a' * 64}:8000", True),
    ],
)
def test_addresses_that_are_none_are_refused(urls: str | list[str], base_path: bool) -> None:  # noqa: FBT001
    """Schemes, missing ports, and names that cannot be looked up are the caller's mistake, said at once."""
    with pytest.raises(InvalidInput, match="expected"):
        addresses_of(urls, base_path=base_path)


def test_addresses_that_nearly_fit_say_what_to_do() -> None:
    """TLS is a setting of the connections, and several addresses are a list."""
    with pytest.raises(InvalidInput, match=r"asks for TLS.*Connections\(tls=Tls"):
        addresses_of("https://localhost:8000", base_path=True)
    with pytest.raises(InvalidInput, match="give several as a list"):
        addresses_of("a:1,b:2", base_path=True)


# ---- Two real servers


@pytest.fixture(scope="module")
def replicas(repository: Path) -> Iterator[list[EmbeddedServer]]:
    """Two servers of `linear`."""
    with ExitStack() as stack:
        yield [stack.enter_context(EmbeddedServer(repository, models=["linear"])) for _ in range(2)]


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Each protocol."""
    chosen: Protocol = request.param
    return chosen


def _urls(replicas: list[EmbeddedServer], protocol: Protocol) -> list[str]:
    return [server.grpc_url if protocol == "grpc" else server.http_url for server in replicas]


def _counts(replicas: list[EmbeddedServer]) -> list[int]:
    counts = []
    for server in replicas:
        with Client(server.http_url) as client:
            counts.append(int(client.settled_statistics("linear").inference_count))
    return counts


def _infer(client: Client, value: float = 1.0) -> None:
    y = client.infer("linear", {"x": X * value})["y"]
    np.testing.assert_allclose(y, X * value @ WEIGHTS, rtol=1e-5)


@pytest.mark.triton
def test_sequential_calls_reach_both_servers(replicas: list[EmbeddedServer], protocol: Protocol) -> None:
    """One caller over connections that are kept open still uses both servers, half and half."""
    before = _counts(replicas)
    with Client(_urls(replicas, protocol), protocol=protocol, retry=None) as client:
        client.contract("linear")
        for number in range(20):
            _infer(client, number)
    assert [now - then for now, then in zip(_counts(replicas), before, strict=True)] == [10, 10]


@pytest.mark.triton
def test_sixteen_threads_share_both_servers(replicas: list[EmbeddedServer], protocol: Protocol) -> None:
    """Under concurrent callers each server gets at least a quarter, and nothing is lost."""
    before = _counts(replicas)
    with (
        Client(_urls(replicas, protocol), protocol=protocol, retry=None) as client,
        ThreadPoolExecutor(16) as threads,
    ):
        list(threads.map(lambda number: _infer(client, number), range(400), timeout=GUARD_S))
    shares = [now - then for now, then in zip(_counts(replicas), before, strict=True)]
    assert sum(shares) == 400
    assert min(shares) >= 100


@pytest.mark.triton
def test_sixteen_tasks_share_both_servers(replicas: list[EmbeddedServer], protocol: Protocol) -> None:
    """The same for asyncio."""

    async def work() -> None:
        async with AsyncClient(_urls(replicas, protocol), protocol=protocol, retry=None) as client:
            free = asyncio.Semaphore(16)

            async def one() -> None:
                async with free:
                    await client.infer("linear", {"x": X})

            await asyncio.wait_for(asyncio.gather(*(one() for _ in range(400))), GUARD_S)

    before = _counts(replicas)
    asyncio.run(work())
    shares = [now - then for now, then in zip(_counts(replicas), before, strict=True)]
    assert sum(shares) == 400
    assert min(shares) >= 100


def _kill(server: EmbeddedServer) -> None:
    """End tritonserver at once, and wait until its guard has swept up."""
    assert server._guard is not None
    (child,) = psutil.Process(server._guard.pid).children()
    os.kill(child.pid, signal.SIGKILL)
    server._guard.wait(GUARD_S)


@pytest.mark.triton
def test_callers_do_not_notice_that_one_server_dies_and_returns(
    replicas: list[EmbeddedServer], protocol: Protocol
) -> None:
    """With retries nobody sees a failure when one of two servers is killed, and once back it is used again."""
    ended = threading.Event()
    answered: list[int] = []

    def call() -> None:
        while not ended.is_set():
            _infer(client)
            answered.append(1)
            time.sleep(0.002)

    with Client(_urls(replicas, protocol), protocol=protocol) as client, ThreadPoolExecutor(8) as threads:
        callers = [threads.submit(call) for _ in range(8)]
        try:
            time.sleep(0.3)
            _kill(replicas[1])
            after_kill = len(answered)
            time.sleep(0.5)
            assert len(answered) > after_kill
            replicas[1].stop()
            replicas[1].start()
            deadline = time.monotonic() + GUARD_S
            while _counts(replicas)[1] < 10 and time.monotonic() < deadline:
                time.sleep(0.1)
        finally:
            ended.set()
        for caller in callers:
            caller.result(GUARD_S)
    assert _counts(replicas)[1] >= 10


# ---- One server beside an endpoint that does not answer


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


def _ask(urls: list[str], protocol: Protocol, kind: str, timeout_s: float) -> list[int]:
    """Infer, look whether it is ready, and read the statistics; how often it was counted, by both and by the timing."""
    if kind == "asyncio":
        return asyncio.run(_ask_in_asyncio(urls, protocol, timeout_s))
    with Client(urls, protocol=protocol, timeout_s=timeout_s) as client:
        _infer(client)
        assert client.ready("linear")
        timing = infer_timed(client, "linear", {"x": X})[1]
        return [int(client.settled_statistics("linear").inference_count > 0), timing.requests]


async def _ask_in_asyncio(urls: list[str], protocol: Protocol, timeout_s: float) -> list[int]:
    async with AsyncClient(urls, protocol=protocol, timeout_s=timeout_s) as client:
        await client.infer("linear", {"x": X})
        assert await client.ready("linear")
        timing = (await infer_timed_async(client, "linear", {"x": X}))[1]
        return [int((await client.settled_statistics("linear")).inference_count > 0), timing.requests]


@pytest.mark.triton
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_dead_replica_hides_nothing_of_the_others(server: EmbeddedServer, protocol: Protocol, kind: str) -> None:
    """Statistics and timings come from the replica that answers, wherever in the list the dead one stands."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        dead = f"127.0.0.1:{listener.getsockname()[1]}"
    alive = _urls([server], protocol)
    for urls in ([dead, *alive], [*alive, dead]):
        assert _ask(urls, protocol, kind, GUARD_S) == [1, 1]


@pytest.mark.triton
@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_a_silent_replica_does_not_take_the_whole_time(
    server: EmbeddedServer, silent: str, protocol: Protocol, kind: str
) -> None:
    """Learning the model and looking for readiness go on to the next endpoint before the deadline."""

    async def awaited() -> None:
        async with AsyncClient(urls, protocol=protocol, timeout_s=2) as client:
            assert (await client.contract("linear")).model == "linear"
            assert await client.ready("linear")

    urls = [silent, *_urls([server], protocol)]
    if kind == "asyncio":
        asyncio.run(awaited())
        return
    with Client(urls, protocol=protocol, timeout_s=2) as client:
        assert client.contract("linear").model == "linear"
        assert client.ready("linear")


def test_when_no_replica_answers_the_statistics_say_why() -> None:
    """With every endpoint dead there is nothing to add up, and the first one's failure comes."""
    with (
        pytest.raises(Unreachable, match=r"127.0.0.1:1, model .linear"),
        Client(["127.0.0.1:1", "127.0.0.1:2"]) as client,
    ):
        client.statistics("linear")
