"""Arrival processes and client-side batches, as pure functions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.arrivals import PROCESSES, client_batches, schedule
from tritonbatch.loadtest.plan import chosen_loads, given_loads


@given(st.sampled_from(sorted(PROCESSES)), st.floats(0.5, 1e5), st.integers(1, 500), st.integers(0, 2**32))
def test_schedules_are_ascending_and_repeatable(process: str, rate: float, requests: int, seed: int) -> None:
    """Same arguments, same schedule; times never go back and start after zero."""
    times = schedule(process, rate, requests, seed)
    assert len(times) == requests
    assert times[0] >= 0
    assert (np.diff(times) >= 0).all()
    np.testing.assert_array_equal(times, schedule(process, rate, requests, seed))


def test_a_schedule_is_the_same_on_every_machine() -> None:
    """The first arrivals of a known seed, as literal nanoseconds."""
    assert schedule("poisson", 100, 3, 1).tolist() == [10730290, 13814821, 67569190]
    assert schedule("constant", 100, 3, 1).tolist() == [10_000_000, 20_000_000, 30_000_000]


def test_poisson_arrivals_have_the_rate_and_the_spread_of_poisson() -> None:
    """The mean gap is 1/rate and its standard deviation equals its mean, within 3%."""
    gaps = np.diff(schedule("poisson", 200, 50_000, 7)) / 1e9
    assert gaps.mean() == pytest.approx(1 / 200, rel=0.03)
    assert gaps.std() == pytest.approx(1 / 200, rel=0.03)


@pytest.mark.parametrize(
    ("process", "rate", "requests", "says"),
    [
        ("pareto", 1.0, 1, "Unknown arrival process 'pareto': expected one of constant, poisson"),
        ("poisson", 0.0, 1, "rate is 0.0/s"),
        ("poisson", -5.0, 1, "rate is -5.0/s"),
        ("poisson", float("nan"), 1, "rate is nan/s"),
        ("poisson", float("inf"), 1, "rate is inf/s"),
        ("constant", 1.0, 0, "number of requests is 0"),
    ],
)
def test_arrivals_that_cannot_be_are_refused(process: str, rate: float, requests: int, says: str) -> None:
    """Rates and counts that make no schedule are named."""
    with pytest.raises(InvalidInput, match=says):
        schedule(process, rate, requests, 1)


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=100), st.integers(1, 40))
def test_client_batches_carry_every_row_once_when_the_last_has_come(times: list[int], batch_size: int) -> None:
    """ceil(N/B) batches, all but the last full, each sent at the arrival of its last row."""
    arrivals = np.array(sorted(times))
    batches = client_batches(arrivals, batch_size)
    assert len(batches) == -(-len(arrivals) // batch_size)
    assert [row for _, rows in batches for row in rows] == list(range(len(arrivals)))
    assert all(len(rows) == batch_size for _, rows in batches[:-1])
    assert all(due == arrivals[list(rows)].max() for due, rows in batches)


def test_loads_are_chosen_from_what_the_model_can_carry() -> None:
    """Steady is half of what serial carries, saturating is a quarter above what the best batch carries."""
    steady, saturating = chosen_loads({1: 4.0, 32: 16.0}, seconds=8, seed=3)
    assert (steady.name, steady.rate_per_s, steady.requests) == ("steady", 125.0, 500)
    assert (saturating.name, saturating.rate_per_s, saturating.requests) == ("saturating", 2500.0, 2000)
    assert steady.seed == saturating.seed == 3


@pytest.mark.parametrize(("rates", "seconds"), [([0.0], 1.0), ([-1.0], 1.0), ([float("nan")], 1.0), ([1.0], 0.0)])
def test_given_loads_that_cannot_be_are_refused(rates: list[float], seconds: float) -> None:
    """A rate or a duration that is not above zero is a mistake."""
    with pytest.raises(InvalidInput, match="expected a number above 0"):
        given_loads(rates, seconds=seconds, seed=1)
