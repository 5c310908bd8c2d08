"""The search for the highest rate, against servers of known capacity, exact and noisy."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.observe.max_rate import MOST_MEASUREMENTS, MaxRate, Outcome, search

Server = Callable[[float], Outcome]


def play(server: Server, start_per_s: float, most: int = MOST_MEASUREMENTS) -> tuple[MaxRate, list[float]]:
    """Run the search against *server*; what it found, and the rates that it measured."""
    steps, rates = search(start_per_s, most=most), list[float]()
    try:
        rates.append(next(steps))
        while True:
            rates.append(steps.send(server(rates[-1])))
    except StopIteration as end:
        return end.value, rates


def exact(capacity: float) -> Server:
    """A server that meets the objective up to *capacity* and misses it above."""
    return lambda rate: "met" if rate <= capacity else "missed"


def noisy(capacity: float, seed: int, spread: float, undecided: float = 0.1) -> Server:
    """A server whose capacity differs from run to run by *spread*, and some of whose measurements cannot tell."""
    rng = np.random.default_rng(seed)

    def measure(rate: float) -> Outcome:
        if rng.random() < undecided:
            return "undecided"
        return "met" if rate <= capacity * rng.lognormal(0, spread) else "missed"

    return measure


@given(ratio=st.floats(1 / 8, 8), start=st.floats(1, 1e5))
def test_an_exact_server_is_bracketed_and_confirmed(ratio: float, start: float) -> None:
    """Within a factor of 8 of the start the interval holds the capacity, is within 10 %, and is confirmed."""
    found, rates = play(exact(start * ratio), start)
    assert found.met_per_s is not None
    assert found.missed_per_s is not None
    assert found.met_per_s <= start * ratio < found.missed_per_s <= found.met_per_s * 1.1 * (1 + 1e-6)
    assert found.confirmed
    assert len(rates) <= MOST_MEASUREMENTS


@given(
    verdicts=st.lists(st.sampled_from(["met", "missed", "undecided"]), min_size=20, max_size=20),
    most=st.integers(1, 20),
)
def test_the_number_of_measurements_is_bounded_whatever_the_verdicts(verdicts: list[Outcome], most: int) -> None:
    """Any sequence of verdicts ends in time, at positive rates, with ends that agree with their majorities."""
    answers = iter(verdicts)
    found, rates = play(lambda _: next(answers), 100.0, most)
    assert len(rates) <= most
    assert all(math.isfinite(rate) and rate > 0 for rate in rates)
    if found.met_per_s is not None:
        assert found.tallies[found.met_per_s].meets
    if found.missed_per_s is not None:
        assert not found.tallies[found.missed_per_s].meets
    if found.met_per_s is not None and found.missed_per_s is not None:
        assert found.met_per_s < found.missed_per_s
    assert sum(tally.total for tally in found.tallies.values()) == len(rates)


@pytest.mark.parametrize(("spread", "least"), [(0.01, 180), (0.03, 160)])
def test_a_noisy_server_is_bracketed_in_most_cases(spread: float, least: int) -> None:
    """A tenth of the measurements undecided: of 200 intervals 180 hold the capacity with 1 % noise, 160 with 3 %."""
    hits = 0
    for seed in range(200):
        capacity = 1000 * np.random.default_rng(seed).uniform(0.3, 8)
        found, rates = play(noisy(capacity, seed, spread), 1000)
        assert len(rates) <= MOST_MEASUREMENTS
        hits += (found.met_per_s or 0) <= capacity <= (found.missed_per_s or math.inf)
    assert hits >= least


def test_a_first_verdict_that_was_wrong_is_corrected() -> None:
    """A rate that missed by chance is measured again at the end, and the search goes on above it."""
    outcomes = {100.0: iter(["met"] * 9), 200.0: iter(["missed", "met", "met"])}

    def server(rate: float) -> Outcome:
        return next(outcomes[rate]) if rate in outcomes else "met" if rate <= 350 else "missed"  # type: ignore[return-value]

    found, _ = play(server, 100)
    assert found.met_per_s is not None
    assert found.met_per_s > 200


@pytest.mark.parametrize(
    ("outcome", "ends", "measurements"),
    [("met", (True, False), 12), ("missed", (False, True), 7), ("undecided", (False, True), 12)],
)
def test_a_server_without_an_end_leaves_the_interval_open(
    outcome: Outcome, ends: tuple[bool, bool], measurements: int
) -> None:
    """Always met, never met, never decided: one end is missing, and nothing is called confirmed."""
    found, rates = play(lambda _: outcome, 10)
    assert (found.met_per_s is not None, found.missed_per_s is not None) == ends
    assert not found.confirmed
    assert "only one end" in found.confidence
    assert len(rates) == measurements


def test_an_upper_end_that_never_decided_is_said() -> None:
    """The interval's confidence names an upper end that was only undecided."""
    found, _ = play(lambda rate: "met" if rate <= 150 else "undecided", 100)
    assert found.met_per_s is not None
    assert "undecided" in found.confidence
