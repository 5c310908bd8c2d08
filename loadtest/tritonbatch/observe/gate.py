"""Whether runs are worse than a baseline or miss an objective; pure, with the noise between repeats in the decision.

A figure is a regression only when the 95 % interval of its change excludes no change and the change is larger than the
smallest that matters. A failed request is no latency, so failures are compared beside the latencies, and every sentence
with a percentile says how many requests failed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tritonbatch.observe.baseline import QUANTILES, RunSummary
from tritonbatch.observe.confidence import Figure, Interval, difference_interval, mean_interval
from tritonbatch.observe.judge import Check

LEAST_EFFECT = 0.05
LEAST_FAILURES = 0.001
"""A rise of the failed share by less than 0.1 percentage points is none."""

Outcome = Literal["regression", "improved", "unchanged", "met", "missed", "undecided"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One figure or objective: what became of it, in figures and in a sentence.

    *before* and *after* are in *unit*; *low* and *high* bound the change: relative for latency and throughput, in
    shares of the requests for failures. None where there is nothing to compare.
    """

    name: str
    outcome: Outcome
    sentence: str
    unit: str = ""
    before: float | None = None
    after: float | None = None
    change: float | None = None
    low: float | None = None
    high: float | None = None

    @property
    def fails(self) -> bool:
        """Whether it alone fails the gate."""
        return self.outcome in {"regression", "missed"}


@dataclass(frozen=True, slots=True)
class Result:
    """All findings, what must be known about them, and whether the gate is passed."""

    findings: tuple[Finding, ...]
    notes: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """No regression and no missed objective; what is undecided passes."""
        return not any(finding.fails for finding in self.findings)

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        failing = [f"{finding.name} ({finding.outcome})" for finding in self.findings if finding.fails]
        open_ones = [finding.name for finding in self.findings if finding.outcome == "undecided"]
        undecided = f"; undecided: {', '.join(open_ones)}" if open_ones else ""
        if failing:
            return f"The gate fails: {', '.join(failing)}{undecided}."
        good = len(self.findings) - len(open_ones)
        return f"The gate passes: {good} of {len(self.findings)} findings are good{undecided}."


def changes(
    before: Sequence[RunSummary], after: Sequence[RunSummary], least_effect: float = LEAST_EFFECT
) -> list[Finding]:
    """What changed from the runs *before* to those *after*: three quantiles, throughput, failures."""
    failures = _failures_text(before, after)
    figures = [
        *((f"{name} latency", "ms", 1, [run.latency.get(name) for run in [*before, *after]]) for name in QUANTILES),
        ("throughput", "/s", -1, [run.throughput for run in [*before, *after]]),
    ]
    found = []
    for name, unit, worse, values in figures:
        known = [value for value in values if value is not None]
        if len(known) < len(values):
            sentence = f"{name}: no request of a run succeeded ({failures}), so there is nothing to compare."
            found.append(Finding(name=name, outcome="undecided", sentence=sentence))
            continue
        pair = known[: len(before)], known[len(before) :]
        found.append(_ratio_finding(name, unit, worse, pair, least_effect, failures))
    return [*found, _failure_finding(before, after, failures)]


def objective_finding(check: Check) -> Finding:
    """A latency or error objective, held against all requests of the candidate's repeats."""
    outcomes: dict[str, Outcome] = {"holds": "met", "fails": "missed", "undecided": "undecided"}
    after = check.estimate_ms if math.isfinite(check.estimate_ms) else None
    return Finding(
        name=check.objective.text, outcome=outcomes[check.outcome], sentence=check.sentence, unit="ms", after=after
    )


def rate_finding(runs: Sequence[RunSummary], least_per_s: float) -> Finding:
    """Whether the mean throughput of *runs* reaches *least_per_s*."""
    name = f"throughput of at least {least_per_s:g}/s"
    known = [run.throughput for run in runs if run.throughput is not None]
    failed, requests = sum(run.failed for run in runs), sum(run.requests for run in runs)
    if len(known) < len(runs):
        return Finding(
            name=name, outcome="missed", sentence=f"{name}: no request of a run succeeded ({failed:,} failed)."
        )
    interval = mean_interval(known)
    low, mean, high = (math.exp(value) for value in (interval.low, interval.estimate, interval.high))
    outcome: Outcome = "missed" if high < least_per_s else "met" if mean >= least_per_s else "undecided"
    sentence = (
        f"{name} {outcome}: {mean:,.4g}/s (95 % {low:,.4g} to {high:,.4g}), {failed:,} of {requests:,} requests failed."
    )
    return Finding(name=name, outcome=outcome, sentence=sentence, unit="/s", after=mean)


def notes(before: Sequence[RunSummary], after: Sequence[RunSummary]) -> list[str]:
    """What a reader must know about the comparison: repeats, machines, incomplete runs."""
    found = []
    if before and len(before) == len(after) == 1:
        found.append(
            "One run on each side: the noise between repeats is unknown, and the intervals cover the noise within a "
            "run alone; repeat both, five times each, before relying on a regression."
        )
    elif before and 1 in {len(before), len(after)}:
        side = "baseline" if len(before) == 1 else "candidate"
        found.append(f"The {side} is one run: the noise between repeats is taken from the other side.")
    machines = {str(run.facts.get("machine")) for run in [*before, *after] if run.facts.get("machine")}
    if before and len(machines) > 1:
        found.append("Baseline and candidate ran on different machines: a change may be theirs.")
    cut = [run.name for run in after if run.facts.get("complete") is False]
    return [*found, *(f"{name} did not finish: its unanswered requests count as failed." for name in cut)]


def _ratio_finding(
    name: str, unit: str, worse: int, pair: tuple[list[Figure], list[Figure]], least_effect: float, failures: str
) -> Finding:
    interval = difference_interval(*pair)
    before, after = (math.exp(math.fsum(f.value for f in side) / len(side)) for side in pair)
    outcome = classify(interval, worse, math.log1p(least_effect))
    change, low, high = (math.expm1(value) for value in (interval.estimate, interval.low, interval.high))
    sentence = (
        f"{name} {outcome}: {before:,.4g} to {after:,.4g} {unit} "
        f"({change:+.1%}, 95 % {low:+.1%} to {high:+.1%}; {failures})."
    )
    return Finding(
        name=name,
        outcome=outcome,
        sentence=sentence,
        unit=unit,
        before=before,
        after=after,
        change=change,
        low=low,
        high=high,
    )


def classify(interval: Interval, worse: int, least: float) -> Outcome:
    """What a change is, given that up is worse (1) or better (-1) and that less than *least* does not matter."""
    ends = sorted((worse * interval.low, worse * interval.high))
    change = worse * interval.estimate
    if ends[0] > 0 and change > least:
        return "regression"
    if ends[1] < 0 and change < -least:
        return "improved"
    # What may be worse by more than matters, and may be nothing, is not known to be unchanged.
    return "undecided" if ends[0] <= 0 and ends[1] > least and change > 0 else "unchanged"


def _failure_finding(before: Sequence[RunSummary], after: Sequence[RunSummary], failures: str) -> Finding:
    interval = difference_interval([_failed_share(run) for run in before], [_failed_share(run) for run in after])
    outcome = classify(interval, 1, LEAST_FAILURES)
    shares = [math.fsum(run.failed / run.requests for run in side) / len(side) for side in (before, after)]
    sentence = f"failures {outcome}: {failures}; the share changed by {interval.estimate:+.2%} of all requests "
    return Finding(
        name="failures",
        outcome=outcome,
        sentence=f"{sentence}(95 % {interval.low:+.2%} to {interval.high:+.2%}).",
        unit="of the requests",
        before=shares[0],
        after=shares[1],
        change=interval.estimate,
        low=interval.low,
        high=interval.high,
    )


def _failed_share(run: RunSummary) -> Figure:
    """The share that failed; its error counts one failure and one success more, as none seen is not none possible."""
    share = (run.failed + 1) / (run.requests + 2)
    return Figure(run.failed / run.requests, math.sqrt(share * (1 - share) / run.requests))


def _failures_text(before: Sequence[RunSummary], after: Sequence[RunSummary]) -> str:
    texts = [
        f"{sum(run.failed for run in side):,} of {sum(run.requests for run in side):,}" for side in (before, after)
    ]
    return f"failed {texts[0]}, then {texts[1]}"
