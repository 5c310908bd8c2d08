"""Sixty-four callers while the server is killed and comes back: no wrong answer, no hang, and only failures of ours."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from tritonbatch.client import AsyncClient, Client, NotReady, Protocol, TimedOut, Unreachable
from tritonbatch.errors import RequestFailed
from tritonbatch.server import EmbeddedServer

CALLERS = 64
KILLS = 2
GUARD_S = 60.0
TIMEOUT_S = 3.0
PAUSE_S = 0.05
"""After a failure; without it the callers would take the CPU that the server needs to come back."""
WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


@dataclass
class Tally:
    """What the callers have seen so far; *answered* by caller and round, a round beginning when the server is back."""

    round: int = 0
    answered: set[tuple[int, int]] = field(default_factory=set)
    failures: list[RequestFailed] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def everyone_answered(self) -> bool:
        """Whether each caller got an answer in this round."""
        return all((caller, self.round) in self.answered for caller in range(CALLERS))

    def check(self, caller: int, asked_in: int, x: npt.NDArray[np.float32], y: npt.NDArray[np.float32]) -> None:
        """Compare an answer; the numbers are small whole ones, so it is exact."""
        np.testing.assert_array_equal(y, x @ WEIGHTS)
        self.answered.add((caller, asked_in))


def _input(caller: int, number: int) -> npt.NDArray[np.float32]:
    """A row that no other caller sends, and this one not soon again."""
    return np.array([[caller, number % 1000, caller * number % 97, 1]], np.float32)


def _call(client: Client, tally: Tally, caller: int) -> None:
    number = 0
    while not tally.ended.is_set():
        number, asked_in, x = number + 1, tally.round, _input(caller, number)
        try:
            tally.check(caller, asked_in, x, client.infer("linear", {"x": x})["y"])
        except RequestFailed as failure:
            tally.failures.append(failure)
            time.sleep(PAUSE_S)


async def _acall(client: AsyncClient, tally: Tally, caller: int) -> None:
    number = 0
    while not tally.ended.is_set():
        number, asked_in, x = number + 1, tally.round, _input(caller, number)
        try:
            tally.check(caller, asked_in, x, (await client.infer("linear", {"x": x}))["y"])
        except RequestFailed as failure:
            tally.failures.append(failure)
            await asyncio.sleep(PAUSE_S)


def _wait_for_everyone(tally: Tally) -> None:
    deadline = time.monotonic() + GUARD_S / 3
    while not tally.everyone_answered() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert tally.everyone_answered(), tally.failures[-1:]


def _kill_and_restart(server: EmbeddedServer, tally: Tally) -> None:
    """Kill tritonserver under load and start it again, so many times; everyone must get answers before and after."""
    try:
        _wait_for_everyone(tally)
        for _ in range(KILLS):
            assert server._guard is not None
            (child,) = psutil.Process(server._guard.pid).children()
            os.kill(child.pid, signal.SIGKILL)
            server._guard.wait(GUARD_S)
            server.stop()
            server.start()
            tally.round += 1
            _wait_for_everyone(tally)
    finally:
        tally.ended.set()


def _check(tally: Tally) -> None:
    """Every failure has a kind that says to try again, or that time ran out, and its cause."""
    kinds = {type(failure) for failure in tally.failures}
    assert Unreachable in kinds
    assert kinds <= {Unreachable, NotReady, TimedOut}
    assert all(failure.__cause__ is not None for failure in tally.failures if not isinstance(failure, TimedOut))


@pytest.fixture(scope="module")
def doomed_server(repository: Path) -> Iterator[EmbeddedServer]:
    """A server of `linear` that the tests kill and start again, each time on the same ports."""
    with EmbeddedServer(repository, models=["linear"]) as running:
        yield running


@pytest.fixture(params=["http", "grpc"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Each protocol."""
    chosen: Protocol = request.param
    return chosen


def _url(server: EmbeddedServer, protocol: Protocol) -> str:
    return server.grpc_url if protocol == "grpc" else server.http_url


@pytest.mark.triton
def test_threads_survive_the_death_of_the_server(doomed_server: EmbeddedServer, protocol: Protocol) -> None:
    """Sixty-four threads on one client see right answers or failures of ours, and all are answered after each death."""
    tally = Tally()
    url = _url(doomed_server, protocol)
    with Client(url, protocol=protocol, timeout_s=TIMEOUT_S) as client, ThreadPoolExecutor(CALLERS) as threads:
        callers = [threads.submit(_call, client, tally, caller) for caller in range(CALLERS)]
        try:
            _kill_and_restart(doomed_server, tally)
        finally:
            for caller in callers:  # a wrong answer tells more than that somebody got none
                caller.result(GUARD_S)
    _check(tally)


@pytest.mark.triton
def test_tasks_survive_the_death_of_the_server(doomed_server: EmbeddedServer, protocol: Protocol) -> None:
    """The same for sixty-four asyncio tasks."""
    tally = Tally()

    async def work() -> None:
        async with AsyncClient(_url(doomed_server, protocol), protocol=protocol, timeout_s=TIMEOUT_S) as client:
            callers = [_acall(client, tally, caller) for caller in range(CALLERS)]
            await asyncio.gather(asyncio.to_thread(_kill_and_restart, doomed_server, tally), *callers)

    asyncio.run(asyncio.wait_for(work(), 2 * GUARD_S))
    _check(tally)
