"""Playing a load, open and closed loop: against a transport that a test controls."""

from __future__ import annotations

import time
from collections.abc import Callable

import gevent
import gevent.event
import numpy as np
import numpy.typing as npt
import pytest

from tritonbatch.loadtest.closed import ClosedLoop
from tritonbatch.loadtest.drive import Player
from tritonbatch.loadtest.records import OK, STATUSES, Records
from tritonbatch.loadtest.timer import Timer
from tritonbatch.observe.measurement import latency_of


def at(*milliseconds: float) -> Records:
    """Records of arrivals at these moments."""
    return Records("r", "m", "v", (np.array(milliseconds) * 1e6).astype(np.int64))


class Server:
    """Answers each request after a time that *takes_s* gives for its number."""

    def __init__(self, player: Player | ClosedLoop, takes_s: Callable[[int], float], status: int = OK) -> None:
        self.sent: list[tuple[int, int]] = []
        self.most = 0
        self._player, self._takes_s, self._status = player, takes_s, status

    def start(self, sequence: int, rows: int) -> None:
        """Take a request; the answer comes later, from the hub."""
        self.sent.append((sequence, rows))
        self.most = max(self.most, self._player.outstanding)
        gevent.spawn_later(self._takes_s(sequence), self._player.done, sequence, self._status)


def play(player: Player | ClosedLoop, server: Server, drain_s: float = 10) -> None:
    """Play from now on."""
    player.play(server.start, start_ns=time.perf_counter_ns(), drain_s=drain_s)


def test_arrivals_do_not_wait_for_answers() -> None:
    """Ten requests due within 10 ms are all in flight while none has been answered."""
    records = at(*range(10))
    player = Player(records, client_batch=1, cap=100)
    server = Server(player, lambda _: 0.3)
    play(player, server)
    assert server.most == 10
    assert player.facts() == {
        "complete": True,
        "cap_waits": 0,
        "saturated": False,
        "schedule_lag_p99_ms": player.lag_ms(0.99),
    }
    assert (records.status == OK).all()
    assert (records.done_ns >= records.sent_ns).all()
    assert (records.sent_ns >= records.intended_ns).all()


def test_a_frozen_server_is_in_the_latency_of_everyone_who_waited() -> None:
    """With one connection and a stall, latency from the intended start is long where the raw one is short."""
    records = at(*range(0, 100, 2))
    player = Player(records, client_batch=1, cap=1)
    play(player, Server(player, lambda sequence: 0.001 if sequence else 0.5))
    assert player.cap_waits >= 40
    assert player.lag_ms(0.5) > 300
    assert player.facts()["saturated"]
    assert latency_of(records, records.intended_ns).p50_ms > 300
    assert latency_of(records, records.sent_ns).p50_ms < 100


def test_static_batches_carry_their_rows_and_record_each() -> None:
    """Seven rows in batches of three are three sends, the last with one useful row, each row with its own record."""
    records = at(0, 1, 2, 3, 4, 5, 6)
    player = Player(records, client_batch=3, cap=10)
    server = Server(player, lambda _: 0.0)
    play(player, server)
    assert server.sent == [(0, 3), (1, 3), (2, 1)]
    assert (records.batch == 3).all()
    assert records.sent_ns[0] == records.sent_ns[2] >= records.intended_ns[2]
    assert len(player.ended_since(0)[0]) == 3
    assert len(player.ended_since(2)[0]) == 1


def test_what_was_not_answered_stays_unfinished() -> None:
    """A request without an answer when the drain ends is recorded as unfinished, and the run as incomplete."""
    records = at(0, 1)
    player = Player(records, client_batch=1, cap=10)
    play(player, Server(player, lambda sequence: 60.0 if sequence else 0.0), drain_s=0.2)
    assert not player.complete
    assert [STATUSES[code] for code in records.status] == ["ok", "unfinished"]
    assert records.done_ns[1] == -1


@pytest.mark.parametrize("status", range(2, len(STATUSES)))
def test_failures_keep_their_kind(status: int) -> None:
    """The status that the transport reports is the one recorded."""
    records = at(0)
    player = Player(records, client_batch=1, cap=1)
    play(player, Server(player, lambda _: 0.0, status), drain_s=5)
    assert records.status[0] == status


def test_an_answer_may_come_while_it_is_sent() -> None:
    """A transport that fails at once calls back from within; every request still ends once."""
    records = at(*[0] * 500)
    player = Player(records, client_batch=1, cap=3)
    player.play(lambda sequence, _: player.done(sequence, OK), start_ns=time.perf_counter_ns(), drain_s=10)
    assert player.complete
    assert player.finished == list(range(500))


def closed(users: int, seconds: float, think_ms: float = 0.0) -> ClosedLoop:
    """A closed loop whose records are plain."""

    def describe(sent_ns: npt.NDArray[np.int64]) -> Records:
        return Records("r", "m", "v", sent_ns)

    return ClosedLoop(users, (lambda: think_ms) if think_ms else None, seconds, describe)


def test_a_closed_loop_has_as_many_outstanding_as_users() -> None:
    """Four users keep four requests outstanding, never more, and each request begins when one has ended."""
    loop = closed(4, 0.3)
    server = Server(loop, lambda _: 0.02)
    play(loop, server)
    records = loop.records
    assert loop.complete
    assert server.most == 4
    assert (records.status == OK).all()
    assert len(records) >= 16
    np.testing.assert_array_equal(records.sent_ns, records.intended_ns)
    assert np.sort(records.sent_ns)[4] >= records.done_ns.min()


def test_think_time_is_between_an_answer_and_the_next_request() -> None:
    """One user who thinks 50 ms asks about every 50 ms, although answers come at once."""
    loop = closed(1, 0.4, think_ms=50)
    play(loop, Server(loop, lambda _: 0.0))
    records = loop.records
    assert (records.sent_ns[1:] - records.done_ns[:-1] >= 45e6).all()
    assert 3 <= len(records) <= 8


def test_a_closed_loop_ends_although_answers_are_missing() -> None:
    """After the drain what is missing is unfinished."""
    loop = closed(2, 0.1)
    play(loop, Server(loop, lambda _: 60.0), drain_s=0.2)
    assert not loop.complete
    assert [STATUSES[code] for code in loop.records.status] == ["unfinished"] * 2


def test_the_timer_never_wakes_early() -> None:
    """Moments between milliseconds are met, in any order of length."""
    woke, event = [], gevent.event.Event()

    def wake() -> None:
        woke.append(time.perf_counter_ns())
        event.set()

    timer = Timer(wake)
    for delay_ns in (1, 300_000, 1_700_000, -5, 20_000_000):
        event.clear()
        due_ns = time.perf_counter_ns() + delay_ns
        timer.at(delay_ns)
        assert event.wait(5)
        assert woke[-1] >= due_ns
    timer.close()
