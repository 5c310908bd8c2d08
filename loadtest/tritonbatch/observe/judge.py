"""Whether runs meet a service level objective. A failed request counts as one that took for ever."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tritonbatch.loadtest.records import OK, Records
from tritonbatch.observe.confidence import correlation_time, tail_correlation_time
from tritonbatch.observe.early_stopping import Outcome, decide
from tritonbatch.observe.slo import Objective
from tritonbatch.observe.steady import Steadiness, steadiness

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One objective against requests: *over* of *requests* were over its limit or failed, *failed* of them failed.

    ``estimate_ms`` is the observed quantile with failures as infinite; NaN for an objective on errors alone.
    ``needed`` is how many more requests an undecided objective needs at least.
    """

    objective: Objective
    outcome: Outcome
    requests: int
    over: int
    failed: int
    estimate_ms: float
    needed: int

    @property
    def sentence(self) -> str:
        """What was seen and what it shows, with the number of failed requests."""
        requests, failed = f"{self.requests:,} requests", f"{self.failed:,} failed"
        seen = f"{self.over:,} of {requests} were over ({failed})"
        if math.isinf(self.objective.limit_ms):
            seen = f"{failed} of {requests}"
        else:
            seen = f"p{100 * self.objective.quantile:g} is {self.estimate_ms:,.3g} ms, {seen}"
        more = f"; at least {self.needed:,} more requests are needed" if self.outcome == "undecided" else ""
        return f"{self.objective.text} {self.outcome}: {seen}{more}."


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Whether a run meets the whole SLO, with the warm-up discarded: every check, and whether it was steady."""

    outcome: Literal["met", "missed", "undecided"]
    checks: tuple[Check, ...]
    steadiness: Steadiness
    sentence: str


def check(runs: Sequence[Records], objective: Objective, drop: int = 0) -> Check:
    """Hold *objective* against all requests of *runs* together, without the first *drop* of each."""
    latencies = [latency_or_infinite(records)[drop:] for records in runs]
    independent, over = 0.0, 0
    for latency in latencies:
        if len(latency):
            independent += len(latency) / _correlation(latency, objective)
            over += int(_over(latency, objective).sum())
    every = np.concatenate(latencies) if latencies else np.empty(0)
    time = len(every) / independent if independent else 1.0
    verdict = decide(len(every), over, objective.allowed, max(1.0, time))
    timed = len(every) and math.isfinite(objective.limit_ms)
    estimate = float(np.quantile(every, objective.quantile, method="inverted_cdf")) if timed else math.nan
    return Check(
        objective=objective,
        outcome=verdict.outcome,
        requests=len(every),
        over=over,
        failed=int(np.isinf(every).sum()),
        estimate_ms=estimate,
        needed=verdict.needed,
    )


def judge(records: Records, objectives: Sequence[Objective]) -> Judgement:
    """Judge one run, without its warm-up.

    It is missed when its backlog grows, whatever the quantiles say: they would be worse after a longer run. When only
    the latency grows, which a disturbance does as well, it cannot be met, but is undecided and to be repeated.
    """
    steady = steadiness(records)
    checks = tuple(check([records], objective, steady.warm_up.drop) for objective in objectives)
    outcomes = {each.outcome for each in checks}
    grows = steady.state in {"backlog grows", "latency grows"}
    sentence = " ".join([*(each.sentence for each in checks), *([steady.sentence] if grows else [])])
    outcome: Literal["met", "missed", "undecided"] = "met"
    if steady.state == "backlog grows" or "fails" in outcomes:
        outcome = "missed"
    elif grows or "undecided" in outcomes:
        outcome = "undecided"
    return Judgement(outcome=outcome, checks=checks, steadiness=steady, sentence=sentence)


def latency_or_infinite(records: Records) -> Floats:
    """Milliseconds from intended start to answer, in order of intended start; infinite where there was no answer."""
    order = np.argsort(records.intended_ns, kind="stable")
    latency = (records.done_ns[order] - records.intended_ns[order]) / 1e6
    return np.where(records.status[order] == OK, latency, np.inf)


def _over(latency: Floats, objective: Objective) -> npt.NDArray[np.bool_]:
    return np.isinf(latency) if math.isinf(objective.limit_ms) else latency > objective.limit_ms


def _correlation(latency: Floats, objective: Objective) -> float:
    """Of the slowest requests rather than those over the limit: none may be over, and queues form all the same."""
    if math.isinf(objective.limit_ms):
        return correlation_time(np.isinf(latency))
    return tail_correlation_time(latency, objective.quantile)
