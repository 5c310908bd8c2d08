"""Which part of a run to judge: what to discard as warm-up, and whether the rest was steady at all.

Warm-up: MSER-5 (White 1997), on the latencies in order of intended start. Of all numbers of leading groups of five
that could be dropped, at most half, it takes the one that makes the standard error of what remains smallest. Two
changes keep it from cutting away slow requests that belong to the result: each group counts with its median, so that
single outliers do not matter, and nothing is dropped whose median is within 10 % of the rest's.

Steady: the rest is cut into 20 windows. The run is not steady when the backlog (arrived and not answered), or the
median latency, rises over the windows (Mann-Kendall, 1 %) and by enough to matter (Theil-Sen): the backlog by more than
1 % of the arrivals and 5 requests, the latency by more than half of its median. Percentiles of such a run only say how
long it lasted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tritonbatch.loadtest.records import OK, Records

GROUP = 5
LEAST_FOR_WARM_UP = 40
SAME_LEVEL = 0.1
WINDOWS = 20
LEAST_FOR_TREND = 100
RISING = 2.326
"""The 99 % point of the normal distribution, for Mann-Kendall's statistic."""
BACKLOG_MATTERS, LEAST_BACKLOG = 0.01, 5
LATENCY_MATTERS = 0.5

State = Literal["steady", "backlog grows", "latency grows", "unknown"]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class WarmUp:
    """How many leading requests to *drop*, never more than half, and why."""

    drop: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Steadiness:
    """Whether a run was steady after its warm-up; rates are per second of that part, latency growth over all of it.

    ``backlog_growth_per_s`` is how many requests per second more arrive than are answered, ``latency_growth`` by what
    part of its median the median latency rose. ``state`` is unknown when too few requests are left to tell.
    """

    state: State
    warm_up: WarmUp
    arrivals_per_s: float
    answers_per_s: float
    backlog_growth_per_s: float
    latency_growth: float
    sentence: str


def warm_up(latency: npt.ArrayLike) -> WarmUp:
    """How many of *latency* (one run, in order of intended start, any unit) to discard; the rule is in the module."""
    values = np.asarray(latency, np.float64)
    if len(values) < LEAST_FOR_WARM_UP:
        return WarmUp(0, f"{len(values)} requests are too few to tell a warm-up: nothing is dropped.")
    groups = np.median(values[: len(values) // GROUP * GROUP].reshape(-1, GROUP), axis=1)
    drop = GROUP * _mser(groups)
    if not drop:
        return WarmUp(0, "No warm-up: the first requests are like the others.")
    early, rest = float(np.median(values[:drop])), float(np.median(values[drop:]))
    if abs(early - rest) <= SAME_LEVEL * rest:
        return WarmUp(0, f"No warm-up: the median of the first {drop:,} requests is within 10 % of the others'.")
    return WarmUp(drop, f"The first {drop:,} requests are dropped as warm-up: MSER-5 finds another level there.")


def steadiness(records: Records) -> Steadiness:
    """Find the warm-up of a run and whether the rest was steady; ``warm_up.drop`` counts requests of any status."""
    order = np.argsort(records.intended_ns, kind="stable")
    good = order[records.status[order] == OK]
    latency = (records.done_ns[good] - records.intended_ns[good]) / 1e6
    found = warm_up(latency)
    # The rule saw answered requests only; those that failed in between belong to the warm-up as well.
    drop = int(np.searchsorted(records.intended_ns[order], records.intended_ns[good[found.drop]])) if found.drop else 0
    drop = min(drop, len(order) // 2)
    kept = good[np.searchsorted(records.intended_ns[good], records.intended_ns[order[drop]]) :] if len(order) else good
    intended = records.intended_ns[order[drop:]]
    if len(kept) < LEAST_FOR_TREND or intended[-1] == intended[0]:
        return _unknown(WarmUp(drop, found.why), len(kept))
    return _judged(records, WarmUp(drop, found.why), intended, kept)


def rises(series: npt.ArrayLike) -> tuple[bool, float]:
    """Whether *series* rises (Mann-Kendall, one-sided, 1 %), and its slope per step (Theil-Sen)."""
    values = np.asarray(series, np.float64)
    count = len(values)
    first, second = np.triu_indices(count, 1)
    differences = values[second] - values[first]
    score = float(np.sign(differences).sum())
    deviation = math.sqrt(count * (count - 1) * (2 * count + 5) / 18)
    return (score - 1) / deviation > RISING, float(np.median(differences / (second - first)))


def _mser(groups: Floats) -> int:
    """How many leading *groups* to drop so that the squared standard error of the rest's mean is smallest."""
    centred = groups - groups.mean()
    left = np.arange(len(groups), 0, -1)
    total, squares = np.cumsum(centred[::-1])[::-1], np.cumsum(centred[::-1] ** 2)[::-1]
    error = np.maximum(squares - total**2 / left, 0.0) / left**2
    return int(np.argmin(error[: len(groups) // 2 + 1]))


def _judged(
    records: Records, found: WarmUp, intended: npt.NDArray[np.int64], kept: npt.NDArray[np.int64]
) -> Steadiness:
    latency = (records.done_ns[kept] - records.intended_ns[kept]) / 1e6
    medians = np.array([np.median(part) for part in np.array_split(latency, WINDOWS)])
    latency_rises, latency_slope = rises(medians)
    latency_growth = latency_slope * (WINDOWS - 1) / float(np.median(latency)) if np.median(latency) > 0 else 0.0
    edges = np.linspace(intended[0], intended[-1], WINDOWS + 1)
    answered = np.searchsorted(np.sort(records.done_ns[records.done_ns >= 0]), edges, side="right")
    arrived = np.searchsorted(np.sort(records.intended_ns), edges, side="right")
    backlog_rises, backlog_slope = rises((arrived - answered)[1:])
    seconds = float(edges[-1] - edges[0]) / 1e9
    more = backlog_slope * (WINDOWS - 1)
    backlog_rises = backlog_rises and more >= max(LEAST_BACKLOG, BACKLOG_MATTERS * len(intended))
    arrivals, answers = float(arrived[-1] - arrived[0]) / seconds, float(answered[-1] - answered[0]) / seconds
    growth = backlog_slope * WINDOWS / seconds
    state: State
    if backlog_rises:
        state = "backlog grows"
        sentence = (
            f"Not steady: the backlog grows by {growth:,.3g} requests/s, "
            f"as {arrivals:,.4g}/s arrive and {answers:,.4g}/s are answered."
        )
    elif latency_rises and latency_growth > LATENCY_MATTERS:
        state = "latency grows"
        sentence = f"Not steady: the median latency grows by {latency_growth:.0%} of itself over the run."
    else:
        state = "steady"
        sentence = f"Steady: {arrivals:,.4g} requests/s arrive, and neither backlog nor latency grows."
    return Steadiness(
        state=state,
        warm_up=found,
        arrivals_per_s=arrivals,
        answers_per_s=answers,
        backlog_growth_per_s=growth,
        latency_growth=latency_growth,
        sentence=sentence,
    )


def _unknown(found: WarmUp, left: int) -> Steadiness:
    nan = math.nan
    return Steadiness(
        state="unknown",
        warm_up=found,
        arrivals_per_s=nan,
        answers_per_s=nan,
        backlog_growth_per_s=nan,
        latency_growth=nan,
        sentence=f"{left:,} answered requests are too few to tell whether the run was steady: "
        f"at least {LEAST_FOR_TREND} are needed.",
    )
