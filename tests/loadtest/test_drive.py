"""Playing a schedule open loop: against a transport that a test controls."""

from __future__ import annotations

import gevent
import numpy as np
import pytest

from tritonbatch.loadtest.drive import play
from tritonbatch.loadtest.records import OK, STATUSES, Records
from tritonbatch.observe.measurement import latency_of


def at(*milliseconds: float) -> Records:
    """Records of arrivals at these moments."""
    return Records("r", "m", "v", (np.array(milliseconds) * 1e6).astype(np.int64))


def quiet(first: int, rows: int) -> None:
    """Nobody listens."""


def test_arrivals_do_not_wait_for_answers() -> None:
    """Ten requests due within 10 ms are all in flight while none has been answered."""
    outstanding, most = 0, 0

    def send(sequence: int, rows: int) -> str:
        nonlocal outstanding, most
        outstanding += 1
        most = max(most, outstanding)
        gevent.sleep(0.3)
        outstanding -= 1
        return "ok"

    records = at(*range(10))
    played = play(records, send, quiet, client_batch=1, cap=100, drain_s=10)
    assert most == 10
    assert played.complete
    assert played.cap_waits == 0
    assert (records.status == OK).all()
    assert (records.done_ns >= records.sent_ns).all()
    assert (records.sent_ns >= records.intended_ns).all()


def test_a_frozen_server_is_in_the_latency_of_everyone_who_waited() -> None:
    """With one connection and a stall, latency from the intended start is long where the raw one is short."""
    calls = iter([0.5, *[0.001] * 50])

    def send(sequence: int, rows: int) -> str:
        gevent.sleep(next(calls))
        return "ok"

    records = at(*range(0, 100, 2))
    played = play(records, send, quiet, client_batch=1, cap=1, drain_s=10)
    assert played.cap_waits >= 40
    assert played.lag_ms(0.5) > 300
    assert latency_of(records, records.intended_ns).p50_ms > 300
    assert latency_of(records, records.sent_ns).p50_ms < 100


def test_static_batches_carry_their_rows_and_record_each() -> None:
    """Seven rows in batches of three are three sends, the last with one useful row, each row with its own record."""
    sent = []

    def send(sequence: int, rows: int) -> str:
        sent.append((sequence, rows))
        return "ok"

    records = at(0, 1, 2, 3, 4, 5, 6)
    play(records, send, quiet, client_batch=3, cap=10, drain_s=10)
    assert sent == [(0, 3), (1, 3), (2, 1)]
    assert (records.batch == 3).all()
    assert records.sent_ns[0] == records.sent_ns[2] >= records.intended_ns[2]


def test_what_was_not_answered_stays_unfinished() -> None:
    """A request without an answer when the drain ends is recorded as unfinished, and the run as incomplete."""
    records = at(0, 1)

    def send(sequence: int, rows: int) -> str:
        gevent.sleep(60 if sequence else 0)
        return "ok"

    played = play(records, send, quiet, client_batch=1, cap=10, drain_s=0.2)
    assert not played.complete
    assert [STATUSES[code] for code in records.status] == ["ok", "unfinished"]
    assert records.done_ns[1] == -1


@pytest.mark.parametrize("status", STATUSES[2:])
def test_failures_keep_their_kind(status: str) -> None:
    """The status that the transport reports is the one recorded."""
    records = at(0)

    def send(sequence: int, rows: int) -> str:
        return status

    play(records, send, quiet, client_batch=1, cap=1, drain_s=5)
    assert STATUSES[records.status[0]] == status
