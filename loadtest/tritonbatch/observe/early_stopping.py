"""Whether so many requests already show that a quantile keeps its limit, as MLPerf's early stopping decides it.

"The q-quantile is at most X" says the same as "at most a share 1 - q of all requests is over X". Of n requests, k were
over. If the true share were just 1 - q, the number over would be binomial; where k or fewer would then be seen in at
most 5 % of cases, the objective *holds* with 95 % confidence, and where k or more would, it *fails*.

Requests that queue behind one another are not independent, and n of them are worth fewer: n / τ, where τ is the
integrated autocorrelation time of "over" (see `confidence.py`), because the variance of a share of n correlated
requests is τ times that of n independent ones. Both n and k are divided by it, rounded against the verdict in question.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

RISK = 0.05
MOST_NEEDED = 1 << 40

Outcome = Literal["holds", "fails", "undecided"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether an objective *holds*, *fails* or is *undecided* at 95 % confidence.

    ``needed`` is how many more requests would be needed at least for it to hold: that many if none of them is over
    the limit. 0 when it holds already or fails.
    """

    outcome: Outcome
    needed: int


def decide(requests: int, over: int, allowed: float, correlation_time: float = 1.0) -> Verdict:
    """Whether at most the share *allowed* (above 0, below 1) is over the limit, when *over* of *requests* were.

    *correlation_time* (1 or more) is how many consecutive requests tell as much as one independent request.
    """
    independent = math.floor(requests / correlation_time)
    most_over = min(independent, math.ceil(over / correlation_time))
    if independent and at_most(most_over, independent, allowed) <= RISK:
        return Verdict("holds", 0)
    least_over = math.floor(over / correlation_time)
    if least_over and 1 - at_most(least_over - 1, independent, allowed) <= RISK:
        return Verdict("fails", 0)
    least = least_requests(math.ceil(over / correlation_time), allowed)
    return Verdict("undecided", max(1, math.ceil(least * correlation_time) - requests))


def least_requests(over: int, allowed: float) -> int:
    """The fewest independent requests of which *over* over the limit still show that at most *allowed* are."""
    fewest, enough = over, max(1, over)
    while at_most(over, enough, allowed) > RISK and enough < MOST_NEEDED:
        fewest, enough = enough, enough * 2
    while enough - fewest > 1:
        middle = (fewest + enough) // 2
        fewest, enough = (fewest, middle) if at_most(over, middle, allowed) <= RISK else (middle, enough)
    return enough


def discarded(requests: int, quantile: float, correlation_time: float = 1.0) -> int | None:
    """How many of the slowest latencies to discard, so that the next is at least the *quantile* with 95 % confidence.

    This is MLPerf's early-stopping estimate: with h discarded, the (n - h)-th smallest of n latencies is reported.
    None when even the slowest is no such bound, because there are too few requests.
    """
    independent = math.floor(requests / correlation_time)
    if not independent or at_most(0, independent, 1 - quantile) > RISK:
        return None
    fits, too_many = 0, max(1, math.ceil(independent * (1 - quantile)) + 1)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if at_most(middle, independent, 1 - quantile) <= RISK else (fits, middle)
    return math.floor(fits * correlation_time)


def at_most(successes: int, trials: int, share: float) -> float:
    """The probability of *successes* or fewer in *trials* independent ones that each succeed with *share*."""
    if successes < 0:
        return 0.0
    if successes >= trials:
        return 1.0
    if successes > trials * share:  # sum the smaller tail, whose terms fall from the first
        return 1.0 - at_most(trials - successes - 1, trials, 1 - share)
    first = math.exp(
        math.lgamma(trials + 1)
        - math.lgamma(successes + 1)
        - math.lgamma(trials - successes + 1)
        + successes * math.log(share)
        + (trials - successes) * math.log1p(-share)
    )
    # From one term to the next lower: P(j - 1) / P(j) = j (1 - share) / ((trials - j + 1) share).
    reach = min(successes, 40 + math.ceil(40 * math.sqrt(trials * share * (1 - share))))
    j = np.arange(successes, successes - reach, -1, dtype=np.float64)
    ratios = j * (1 - share) / ((trials - j + 1) * share)
    return min(1.0, first * (1.0 + float(np.cumprod(ratios).sum())))
