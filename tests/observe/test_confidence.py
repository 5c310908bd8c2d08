"""How often the 95 % intervals hold the truth, on series and run sets whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.observe.confidence import (
    Figure,
    block_length,
    correlation_time,
    difference_interval,
    mean_interval,
    quantile_interval,
    quantile_replicates,
    student,
)

Floats = npt.NDArray[np.float64]


def autoregressive(count: int, rng: np.random.Generator, memory: float = 0.8) -> Floats:
    """Lognormal latencies, each like the one before: correlation time (1 + memory) / (1 - memory)."""
    shocks = rng.normal(size=count + 200) * math.sqrt(1 - memory**2)
    return np.asarray(np.exp(np.convolve(shocks, memory ** np.arange(200))[200 : count + 200]))


def queue(count: int, rng: np.random.Generator, utilisation: float = 0.8) -> Floats:
    """Latencies of M/D/1, busy 80 % of the time, service time 1, after a warm-up."""
    arrived = np.cumsum(rng.exponential(1 / utilisation, count + 2000))
    served = np.arange(len(arrived))
    return np.asarray(np.maximum.accumulate(arrived - served) + served + 1 - arrived)[2000:]


@pytest.mark.parametrize("quantile", [0.5, 0.99])
@pytest.mark.parametrize("process", [autoregressive, queue])
def test_an_interval_of_one_run_holds_the_true_quantile(
    process: Callable[[int, np.random.Generator], Floats], quantile: float
) -> None:
    """Of 100 runs of 4,000 correlated latencies, at least 85 intervals hold the quantile of half a million."""
    truth = float(np.quantile(process(500_000, np.random.default_rng(99)), quantile))
    found = [quantile_interval(process(4000, np.random.default_rng(seed)), quantile, seed) for seed in range(100)]
    assert sum(each.low <= truth <= each.high for each in found) >= 85
    assert all(each.low <= each.estimate <= each.high for each in found)


def test_single_requests_as_blocks_would_be_too_sure() -> None:
    """The interval of correlated latencies is at least twice as wide as that of the same latencies shuffled."""
    latency = autoregressive(20_000, np.random.default_rng(1), memory=0.95)
    shuffled = np.random.default_rng(2).permutation(latency)
    wide, narrow = quantile_interval(latency, 0.5), quantile_interval(shuffled, 0.5)
    assert wide.high - wide.low > 2 * (narrow.high - narrow.low)
    assert block_length(latency, 0.5) > block_length(shuffled, 0.5)


@pytest.mark.parametrize("memory", [0.0, 0.5, 0.9])
def test_the_correlation_time_is_the_known_one(memory: float) -> None:
    """(1 + a) / (1 - a) of an autoregressive series, give or take a quarter."""
    series = np.log(autoregressive(100_000, np.random.default_rng(4), memory))
    assert correlation_time(series) == pytest.approx((1 + memory) / (1 - memory), rel=0.25)


@pytest.mark.parametrize("series", [[], [1.0], [2.0] * 100, [0.0, 1.0] * 100])
def test_the_correlation_time_is_at_least_one(series: list[float]) -> None:
    """Nothing, one value, a constant and an alternating series count each value as one."""
    assert correlation_time(series) == 1.0


@pytest.mark.parametrize("latency", [[5.0], [5.0] * 100, [1.0, 2.0, 3.0]])
def test_few_or_equal_latencies_have_an_interval(latency: list[float]) -> None:
    """The ends surround the estimate, and nothing is NaN."""
    found = quantile_interval(latency, 0.5)
    assert min(latency) <= found.low <= found.estimate <= found.high


def test_too_few_requests_do_not_bound_the_tail() -> None:
    """The p99 of 50 requests has no upper end; without any latency nothing is known."""
    assert quantile_interval(np.arange(50.0), 0.99).high == math.inf
    assert math.isnan(quantile_interval([], 0.99).estimate)


def test_the_same_seed_gives_the_same_interval() -> None:
    """The bootstrap is seeded."""
    latency = autoregressive(1000, np.random.default_rng(5))
    assert quantile_interval(latency, 0.95, 1) == quantile_interval(latency, 0.95, 1)
    assert not np.array_equal(quantile_replicates(latency, 0.95, 1), quantile_replicates(latency, 0.95, 2))


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=60), st.sampled_from([0.05, 0.5, 0.99]))
def test_copies_consist_of_latencies_that_were_seen(latency: list[float], quantile: float) -> None:
    """Whatever the latencies, every resampled quantile is one of them."""
    assert set(quantile_replicates(np.array(latency), quantile, 0, 20)) <= set(latency)


def runs(rng: np.random.Generator, level: float, count: int) -> list[Figure]:
    """Figures of *count* repeats: 3 % from run to run, 1 % within each."""
    return [Figure(level + rng.normal(0, 0.03) + rng.normal(0, 0.01), 0.01) for _ in range(count)]


@pytest.mark.parametrize(("before", "after"), [(5, 5), (3, 3), (2, 5), (5, 1)])
def test_a_difference_of_run_sets_is_covered(before: int, after: int) -> None:
    """Of 200 pairs of run sets at least 88 % of the intervals hold the true difference, one-run sides included."""
    hits = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        found = difference_interval(runs(rng, 1.0, before), runs(rng, 1.1, after), seed)
        hits += found.low <= 0.1 <= found.high
    assert hits >= 176


def test_one_run_knows_its_own_noise_alone() -> None:
    """Without repeats the interval is that of the standard error within the run."""
    found = mean_interval([Figure(2.0, 0.1)])
    assert (found.high - found.low) / 2 == pytest.approx(0.196, rel=0.15)


@pytest.mark.parametrize(
    ("degrees", "point"), [(0.3, 12.706), (1, 12.706), (4.9, 2.776), (11, 2.201), (30, 2.042), (1e12, 1.960)]
)
def test_students_t_is_the_known_one(degrees: float, point: float) -> None:
    """Values of the table, and beyond it."""
    assert student(degrees) == pytest.approx(point, abs=0.003)
