"""The highest arrival rate that meets an objective, found by bracketing; pure: it proposes rates and takes verdicts.

The rate is doubled until the objective is missed (or halved until it is met), then the bracket is halved on a
logarithmic scale until its ends are within the tolerance. Measurements are noisy, so both ends of the final bracket are
measured a second time, and a rate whose verdicts contradict one another a third time: the majority counts. A rate that
stays undecided was not shown to meet the objective, and bounds the bracket from above.

Where the verdicts of an end contradicted one another, the capacity is about there, on either side. The interval that is
reported reaches to the next rate whose verdicts did not: of simulated servers with 1 % noise between runs it then holds
the capacity of 95 %, with 3 % noise of 86 %, instead of 85 % and 71 %.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Literal

MOST_MEASUREMENTS = 12
TOLERANCE = 0.1
MOST_HALVINGS = 6
"""From the start down: what misses an objective even then will hardly meet it at any rate."""

Outcome = Literal["met", "missed", "undecided"]
Search = Generator[float, Outcome, "MaxRate"]
"""Yields the next rate to measure, is sent its outcome, and returns what was found."""


@dataclass(frozen=True, slots=True)
class Tally:
    """How often a rate was measured to meet the objective, to miss it, and neither."""

    met: int = 0
    missed: int = 0
    undecided: int = 0

    @property
    def total(self) -> int:
        """All measurements of the rate."""
        return self.met + self.missed + self.undecided

    def with_outcome(self, outcome: Outcome) -> Tally:
        """The tally after another measurement."""
        return Tally(
            self.met + (outcome == "met"),
            self.missed + (outcome == "missed"),
            self.undecided + (outcome == "undecided"),
        )

    @property
    def meets(self) -> bool:
        """Whether more measurements met the objective than did not show it."""
        return self.met > self.missed + self.undecided

    @property
    def clear(self) -> bool:
        """Whether a majority said the same: neither a draw nor a single measurement that could not tell."""
        return self.met != self.missed + self.undecided and not (self.total == 1 and self.undecided)


@dataclass(frozen=True, slots=True)
class MaxRate:
    """The interval that holds the highest rate: *met_per_s* was met, *missed_per_s* was not; None where there is none.

    ``confirmed`` says that the interval is within the tolerance, and that both ends were measured twice at least
    without contradiction, the upper one having missed the objective.
    """

    met_per_s: float | None
    missed_per_s: float | None
    confirmed: bool
    tallies: Mapping[float, Tally]

    @property
    def confidence(self) -> str:
        """How far the interval can be relied on, in words."""
        if self.confirmed:
            return "both ends were confirmed, each by verdicts at 95 % confidence"
        if self.met_per_s is None or self.missed_per_s is None:
            return "only one end was found"
        between = [tally for rate, tally in self.tallies.items() if self.met_per_s <= rate <= self.missed_per_s]
        if any(tally.met and tally.missed for tally in between):
            return "measurements near the limit contradicted one another, so the interval is as wide as they make it"
        if self.tallies[self.missed_per_s].missed == 0:
            return "the upper end was undecided, so the highest rate may lie above it"
        return "the ends were not all confirmed within the measurements allowed"


def search(start_per_s: float, *, tolerance: float = TOLERANCE, most: int = MOST_MEASUREMENTS) -> Search:
    """Search from *start_per_s* with at most *most* measurements, until the ends are within *tolerance*."""
    tallies: dict[float, Tally] = {}
    for _ in range(most):
        rate = _next(tallies, start_per_s, tolerance)
        if rate is None:
            break
        outcome = yield rate
        tallies[rate] = tallies.get(rate, Tally()).with_outcome(outcome)
    low, high = bracket(tallies)
    ends = unanimous(tallies, low, high)
    # An upper end that is merely undecided does not confirm it.
    both = low is not None and high is not None and tallies[high].missed > 0 and ends == (low, high)
    return MaxRate(*ends, both and _next(tallies, start_per_s, tolerance) is None, tallies)


def bracket(tallies: Mapping[float, Tally]) -> tuple[float | None, float | None]:
    """The highest rate that meets the objective below every one that does not, and the lowest that does not."""
    high = min((rate for rate, tally in tallies.items() if not tally.meets), default=None)
    met = [rate for rate, tally in tallies.items() if tally.meets and (high is None or rate < high)]
    return max(met, default=None), high


def unanimous(
    tallies: Mapping[float, Tally], low: float | None, high: float | None
) -> tuple[float | None, float | None]:
    """The bracket widened to rates at which no verdict contradicts another; an end without such a rate stays."""
    met = [rate for rate, tally in tallies.items() if tally.meets and not tally.missed]
    unmet = [rate for rate, tally in tallies.items() if not tally.met]
    return (
        max((rate for rate in met if low is not None and rate <= low), default=low),
        min((rate for rate in unmet if high is not None and rate >= high), default=high),
    )


def _next(tallies: Mapping[float, Tally], start: float, tolerance: float) -> float | None:
    """The rate to measure next; None when the bracket is narrow and both ends are confirmed."""
    low, high = bracket(tallies)
    if not tallies:
        return start
    if contradiction := _contradiction(tallies, high):
        return contradiction
    if high is None:
        return 2 * (low or start)
    if low is None:
        return high / 2 if high > start / 2**MOST_HALVINGS else None
    if high > low * (1 + tolerance) * (1 + 1e-9):
        return math.sqrt(low * high)
    return next((rate for rate in (low, high) if tallies[rate].total < 2 or not tallies[rate].clear), None)


def _contradiction(tallies: Mapping[float, Tally], high: float | None) -> float | None:
    """A rate to repeat because it cannot tell, or because it misses what a higher rate meets; None if none is left."""
    if high is None:
        return None
    tally = tallies[high]
    if not tally.clear and tally.total < 3:
        return high
    above = any(rate > high and other.meets for rate, other in tallies.items())
    return high if above and tally.total < 3 else None
