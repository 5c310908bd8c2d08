"""What a run sends, and how workers share it: each arrival once, whole batches, the requests of a single process."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.arrivals import schedule
from tritonbatch.loadtest.mixes import Arrivals
from tritonbatch.loadtest.traffic import (
    CLOSED_CYCLE,
    Traffic,
    closed_records_of,
    picker,
    records_of,
    share_of,
    traffic_of,
)


def options(**changed: Any) -> Any:
    """The options of a small load, with some *changed*."""
    plain = {"pattern": "", "arrivals": "poisson", "rate": 100.0, "requests": 50, "seed": 3, "client_batch": 1}
    return SimpleNamespace(**{**plain, "mix": "", "classes": "", "model": "m", "variant": "v", **changed})


@pytest.mark.parametrize(
    ("changed", "kinds"),
    [
        ({}, [(1, 0)]),
        ({"client_batch": 8}, [(8, 0)]),
        ({"mix": "4:1,2:1"}, [(2, 0), (4, 0)]),
        ({"classes": "fast=1:1,bulk=2:1"}, [(1, 1), (1, 2)]),
        ({"mix": "1:1,8:1", "classes": "fast=1:1,bulk=2:1"}, [(1, 1), (1, 2), (8, 1), (8, 2)]),
        ({"pattern": "constant:rate=100,seconds=1"}, [(1, 0)]),
        ({"pattern": "closed:users=2,seconds=1", "mix": "1:1,3:1"}, [(1, 0), (3, 0)]),
    ],
)
def test_the_kinds_of_requests_are_those_asked_for(changed: dict[str, Any], kinds: list[tuple[int, int]]) -> None:
    """Every pair of size and priority that occurs is there once, in order."""
    assert traffic_of(options(**changed)).kinds == kinds


def test_sizes_and_priorities_leave_the_arrival_times_alone() -> None:
    """A mix and classes change what arrives, not when; the same seed gives the same traffic."""
    plain, mixed = traffic_of(options()), traffic_of(options(mix="1:1,8:1", classes="fast=1:1,bulk=2:1"))
    np.testing.assert_array_equal(plain.arrivals.at_ns, schedule("poisson", 100, 50, 3))
    np.testing.assert_array_equal(mixed.arrivals.at_ns, plain.arrivals.at_ns)
    again = traffic_of(options(mix="1:1,8:1", classes="fast=1:1,bulk=2:1"))
    np.testing.assert_array_equal(again.arrivals.rows, mixed.arrivals.rows)
    np.testing.assert_array_equal(again.arrivals.priority, mixed.arrivals.priority)


def test_a_closed_loop_has_a_cycle_and_no_schedule() -> None:
    """Its users and seconds are read, and its requests repeat after a cycle."""
    traffic = traffic_of(options(pattern="closed:users=4,seconds=2,think=constant/5ms", mix="1:1,2:1"))
    assert traffic.closed is not None
    assert (traffic.closed.users, traffic.closed.seconds, traffic.closed.mean_ms) == (4, 2, 5)
    assert len(traffic.arrivals) == CLOSED_CYCLE


def test_working_out_the_traffic_patches_nothing() -> None:
    """A process that imports it keeps its own sockets and threads: Locust, which replaces them, is not imported."""
    program = "import sys, tritonbatch.loadtest.traffic; sys.exit('locust' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(
    "changed", [{"requests": 0}, {"rate": 0.0}, {"mix": "0:1"}, {"classes": "x:1"}, {"pattern": "closed:users=2"}]
)
def test_what_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    """Nothing to send, or a text that means nothing, is the user's mistake."""
    with pytest.raises(InvalidInput):
        traffic_of(options(**changed))


@st.composite
def traffics(draw: st.DrawFn) -> Traffic:
    """Up to 60 arrivals of some sizes and priorities, or in client-side batches."""
    count, client_batch = draw(st.integers(1, 60)), draw(st.sampled_from([1, 1, 2, 3, 8]))
    arrivals = Arrivals.at(np.arange(count, dtype=np.int64))
    if client_batch == 1:
        rng = np.random.default_rng(draw(st.integers(0, 1000)))
        arrivals.rows[:] = rng.integers(1, draw(st.integers(2, 4)), count)
        arrivals.priority[:] = rng.integers(0, draw(st.integers(1, 3)), count)
    return Traffic(arrivals, client_batch, rate_per_s=1.0)


@settings(max_examples=80, deadline=None)
@given(traffic=traffics(), workers=st.integers(1, 9))
def test_shares_are_disjoint_complete_and_of_whole_batches(traffic: Traffic, workers: int) -> None:
    """Any number of workers: every arrival is someone's, and only the last batch of all may be short."""
    shares = [share_of(traffic, index, workers) for index in range(workers)]
    count, size = len(traffic.arrivals), traffic.client_batch
    assert sorted(np.concatenate(shares).tolist()) == list(range(count))
    for share in shares:
        for first in range(0, len(share), size):
            batch = share[first : first + size].tolist()
            assert batch[0] % size == 0
            assert batch == list(range(batch[0], min(batch[0] + size, count)))
    assert max(map(len, shares)) - min(map(len, shares)) <= size


@settings(max_examples=80, deadline=None)
@given(traffic=traffics(), workers=st.integers(1, 9), counts=st.lists(st.integers(1, 7), min_size=12, max_size=12))
def test_workers_pick_what_one_process_would(traffic: Traffic, workers: int, counts: list[int]) -> None:
    """The n-th request of the run is the same prepared one, of the right kind, whoever sends it."""
    kinds = traffic.kinds
    ends = np.cumsum(counts[: len(kinds)]).tolist()
    offsets = list(zip([0, *ends], counts[: len(kinds)], strict=False))
    alone = picker(traffic, offsets, 0, 1)
    size = traffic.client_batch
    for index in range(workers):
        pick = picker(traffic, offsets, index, workers)
        for sequence, first in enumerate(share_of(traffic, index, workers)[::size].tolist()):
            chosen = pick(sequence)
            assert chosen == alone(first // size)
            kind = (int(traffic.arrivals.rows[first]), int(traffic.arrivals.priority[first])) if size == 1 else kinds[0]
            start, count = offsets[kinds.index(kind)]
            assert start <= chosen < start + count


@settings(max_examples=40, deadline=None)
@given(traffic=traffics(), workers=st.integers(1, 4))
def test_records_say_what_each_arrival_is(traffic: Traffic, workers: int) -> None:
    """The empty records of all workers hold every arrival's moment, rows, priority and the batch that carries it."""
    for index in range(workers):
        numbers = share_of(traffic, index, workers)
        records = records_of(traffic, numbers, "r", options())
        assert records.sequence.tolist() == numbers.tolist()
        np.testing.assert_array_equal(records.intended_ns, traffic.arrivals.at_ns[numbers])
        np.testing.assert_array_equal(records.rows, traffic.arrivals.rows[numbers])
        np.testing.assert_array_equal(records.priority, traffic.arrivals.priority[numbers])
        assert (records.batch == (records.rows if traffic.client_batch == 1 else traffic.client_batch)).all()


@settings(max_examples=40, deadline=None)
@given(traffic=traffics(), sent=st.lists(st.integers(0, 90), min_size=1, max_size=4))
def test_a_closed_loops_records_agree_with_what_was_picked(traffic: Traffic, sent: list[int]) -> None:
    """Workers number their requests in turn, unique over all, and the rows recorded are those of the request picked."""
    kinds, workers = traffic.kinds, len(sent)
    offsets = [(position, 1) for position in range(len(kinds))]
    numbers: list[int] = []
    for index, count in enumerate(sent):
        share: Any = SimpleNamespace(index=index, workers=workers)
        records = closed_records_of(traffic, share, "r", options(), np.arange(count, dtype=np.int64))
        pick = picker(traffic, offsets, index, workers)
        recorded = list(zip(records.rows.tolist(), records.priority.tolist(), strict=True))
        assert recorded == [kinds[pick(sequence)] for sequence in range(count)]
        assert (records.batch == records.rows).all()
        assert set(records.worker.tolist()) <= {index}
        numbers += records.sequence.tolist()
    assert len(set(numbers)) == len(numbers)
