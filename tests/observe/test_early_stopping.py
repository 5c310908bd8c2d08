"""When so many requests are enough to say that a quantile keeps its limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.observe.early_stopping import at_most, decide, discarded, least_requests


@pytest.mark.parametrize(
    ("successes", "trials", "share", "probability"),
    [
        (0, 10, 0.5, 1 / 1024),
        (1, 10, 0.5, 11 / 1024),
        (9, 10, 0.5, 1023 / 1024),
        (10, 10, 0.5, 1.0),
        (-1, 10, 0.5, 0.0),
        (0, 299, 0.01, 0.99**299),
        (50, 10_000, 0.01, 2.112240e-08),
    ],
)
def test_the_binomial_is_the_known_one(successes: int, trials: int, share: float, probability: float) -> None:
    """Closed forms, and one value from a table, for sums from either tail."""
    assert at_most(successes, trials, share) == pytest.approx(probability, rel=1e-3, abs=1e-15)


@given(trials=st.integers(1, 400), data=st.data(), share=st.floats(0.001, 0.999))
def test_the_binomial_is_the_sum_of_its_terms(trials: int, data: st.DataObject, share: float) -> None:
    """For any share the fast sum equals the plain one."""
    successes = data.draw(st.integers(0, trials))
    plain = math.fsum(math.comb(trials, j) * share**j * (1 - share) ** (trials - j) for j in range(successes + 1))
    assert at_most(successes, trials, share) == pytest.approx(plain, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize(
    ("requests", "over", "allowed", "outcome"),
    [
        (298, 0, 0.01, "undecided"),
        (299, 0, 0.01, "holds"),
        (473, 1, 0.01, "holds"),
        (472, 1, 0.01, "undecided"),
        (58, 0, 0.05, "undecided"),
        (59, 0, 0.05, "holds"),
        (1000, 10, 0.01, "undecided"),
        (1000, 17, 0.01, "fails"),
        (1000, 15, 0.01, "undecided"),
        (10, 10, 0.01, "fails"),
        (0, 0, 0.01, "undecided"),
    ],
)
def test_a_verdict_needs_its_number_of_requests(requests: int, over: int, allowed: float, outcome: str) -> None:
    """299 requests without one over show a p99, 473 with one; the same share on fewer shows nothing."""
    assert decide(requests, over, allowed).outcome == outcome


@pytest.mark.parametrize(
    ("over", "allowed", "least"), [(0, 0.01, 299), (1, 0.01, 473), (0, 0.05, 59), (0, 0.001, 2995)]
)
def test_the_least_number_of_requests(over: int, allowed: float, least: int) -> None:
    """The known smallest samples of the binomial test."""
    assert least_requests(over, allowed) == least


@given(requests=st.integers(0, 5000), over=st.integers(0, 60), time=st.floats(1, 30))
def test_what_is_still_needed_is_enough(requests: int, over: int, time: float) -> None:
    """An undecided objective holds once the requests that it asked for came and none was over, and not much before."""
    over = min(over, requests)
    verdict = decide(requests, over, 0.01, time)
    if verdict.outcome == "undecided":
        more = requests + verdict.needed
        assert decide(more, over, 0.01, time).outcome == "holds"
        assert decide(more - math.ceil(time) - 1, over, 0.01, time).outcome != "holds"
    else:
        assert verdict.needed == 0


def test_correlated_requests_count_for_less() -> None:
    """What 473 independent requests show takes ten times as many when ten of them tell as much as one."""
    assert decide(473, 1, 0.01).outcome == "holds"
    assert decide(473, 1, 0.01, 10).outcome == "undecided"
    assert decide(4730, 10, 0.01, 10).outcome == "holds"


@pytest.mark.parametrize(
    ("requests", "quantile", "expected"),
    [(298, 0.99, None), (299, 0.99, 0), (473, 0.99, 1), (59, 0.95, 0), (10_000, 0.5, 4917), (0, 0.5, None)],
)
def test_the_estimate_discards_the_slowest(requests: int, quantile: float, expected: int | None) -> None:
    """With h discarded the next latency bounds the quantile; with too few requests nothing does."""
    assert discarded(requests, quantile) == expected


def test_the_estimate_bounds_the_quantile_as_often_as_it_says() -> None:
    """Of 400 samples, some 95 % have their (n - h)-th latency at or above the true p95."""
    rng = np.random.default_rng(3)
    samples = np.sort(rng.exponential(size=(400, 500)), axis=1)
    left = discarded(500, 0.95)
    assert left is not None
    share = float((samples[:, 499 - left] >= -math.log(0.05)).mean())
    assert 0.93 <= share <= 1.0
