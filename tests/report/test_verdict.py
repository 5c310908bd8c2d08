"""The verdict: the right advice from the numbers, in one sentence, with nothing invented."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from tritonbatch.client.counters import Executions
from tritonbatch.errors import InvalidInput
from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.verdict import verdict, verdicts

Measurements = list[Measurement]
Change = Callable[[Measurements], Measurements]


def only(*variants: str) -> Change:
    """Keep these variants."""
    return lambda ms: [m for m in ms if m.variant in variants]


def under(load: str) -> Change:
    """Keep this load."""
    return lambda ms: [m for m in ms if m.load.name == load]


def renamed(**names: str) -> Change:
    """Give variants other names."""
    return lambda ms: [replace(m, variant=names.get(m.variant, m.variant)) for m in ms]


def failing(variant: str, **errors: int) -> Change:
    """Let *variant* fail under the saturating load."""
    return lambda ms: [
        replace(m, errors=errors) if (m.variant, m.load.name) == (variant, "saturating") else m for m in ms
    ]


def without_statistics(ms: Measurements) -> Measurements:
    """Forget what the server counted."""
    return [replace(m, executions=()) for m in ms]


def without_single_executions(ms: Measurements) -> Measurements:
    """Forget every execution of one request."""
    return [replace(m, executions=tuple(e for e in m.executions if e.batch_size > 1)) for m in ms]


def slow_when_idle(ms: Measurements) -> Measurements:
    """Give dynamic a queue delay that low traffic pays for."""
    slow = [replace(m, latency=replace(m.latency, p99_ms=107.0)) if m.variant == "dynamic" else m for m in ms]
    return [s if s.load.name == "steady" else m for s, m in zip(slow, ms, strict=True)]


@pytest.mark.parametrize(
    ("change", "says", "never_says"),
    [
        pytest.param(
            list,
            [
                "Serve m with dynamic for online traffic: at saturation it carried 1,900/s, 6.4 times serial",
                "because an execution of 32 takes 14 ms, only 4.2 times one of 1",
                "at 180/s its p99 (6.0 ms) is no worse than serial's (6.1 ms)",
                "take static for offline jobs that can wait: it carried 2,200/s, 1.2 times dynamic",
                "its p99 at 180/s is 195 ms",
            ],
            ["not recommended"],
            id="helped",
        ),
        pytest.param(
            slow_when_idle,
            ["with serial while traffic is low, because at 180/s its p99 is 6.1 ms against 107 ms for dynamic"],
            ["no worse"],
            id="worse-when-idle",
        ),
        pytest.param(
            failing("dynamic", rejected=9, timeout=3),
            ["Serve m with serial", "12 of 20,000 requests failed under saturating (9 rejected, 3 timeout)"],
            ["with dynamic"],
            id="dynamic-fails",
        ),
        pytest.param(
            failing("static", failed=1),
            ["Serve m with dynamic", "static is not recommended, because 1 of 20,000 requests failed"],
            ["take static"],
            id="static-fails",
        ),
        pytest.param(
            lambda ms: [replace(m, errors={"failed": 2}) for m in ms],
            ["No variant of m can be recommended", "dynamic is not recommended", "serial is not recommended"],
            ["Serve"],
            id="all-fail",
        ),
        pytest.param(only("dynamic"), ["no other variant to compare"], ["times", "Serve"], id="single"),
        pytest.param(only("static"), ["static carried 2,200/s", "no other variant"], ["Serve"], id="single-static"),
        pytest.param(
            only("dynamic", "static"),
            ["with dynamic", "nothing ran one at a time", "take static for offline"],
            ["times serial"],
            id="no-serial",
        ),
        pytest.param(only("serial", "static"), ["with serial", "7.4 times serial"], ["dynamic"], id="no-dynamic"),
        pytest.param(
            renamed(dynamic="served", static="static-32", serial="one"),
            ["with served", "6.4 times one", "take static-32 for offline"],
            ["dynamic"],
            id="other-names",
        ),
        pytest.param(
            under("saturating"), ["with dynamic", "6.4 times serial"], ["at 180/s", "no worse"], id="saturating-only"
        ),
        pytest.param(
            under("steady"),
            ["with dynamic at this traffic", "its p99 was the lowest (6.0 ms; serial 6.1 ms and static 195 ms)"],
            ["times serial"],
            id="steady-only",
        ),
        pytest.param(without_statistics, ["6.4 times serial"], ["an execution of", "nan"], id="no-statistics"),
        pytest.param(
            without_single_executions,
            ["because an execution of 32 takes 14 ms,"],
            ["times one of 1", "nan"],
            id="t(1)-unknown",
        ),
    ],
)
def test_sentence_where_batching_helps(
    helped: Measurements, change: Change, says: list[str], never_says: list[str]
) -> None:
    """The sentence gives the advice that the numbers support, and nothing that they do not."""
    sentence = verdict(change(helped)).sentence
    assert [part for part in says if part not in sentence] == [], sentence
    assert [part for part in never_says if part in sentence] == [], sentence
    assert sentence.endswith(".")
    assert ". " not in sentence, "one sentence"


def test_sentence_where_batching_does_not_help(not_helped: Measurements) -> None:
    """A linear t(B) is named as the reason for keeping batches small."""
    sentence = verdict(not_helped).sentence
    assert "Batching hardly helps m here: an execution of 16 takes 15.2 times one of 1, so dynamic carried" in sentence
    assert "only 1.1 times serial (95/s against 88/s); keep batches small" in sentence


def test_a_flat_curve_is_no_reason_for_a_small_gain(helped: Measurements) -> None:
    """Where t(B) promises more than was carried, the sentence says although, not because."""
    slow = [replace(m, throughput_per_s=300) if m.throughput_per_s > 1000 else m for m in helped]
    assert "although an execution of 32 takes only 4.2 times one of 1, dynamic carried" in verdict(slow).sentence


def test_advice_does_not_depend_on_the_order(helped: Measurements) -> None:
    """The same measurements in another order give the same sentence."""
    assert verdict(helped[::-1]).sentence == verdict(helped).sentence


def test_prediction_is_exact(helped: Measurements) -> None:
    """B/t(B) at the mean batch, times spread, times busy, is what was measured."""
    found = {p.variant: p for p in verdict(helped).predictions}
    static, dynamic = found["static"], found["dynamic"]
    assert static.predicted_per_s == pytest.approx(32 / 0.014)
    assert dynamic.mean_batch == pytest.approx((4 * 10 + 32 * 623) / 633)
    for p in found.values():
        assert p.predicted_per_s * p.spread * p.busy == pytest.approx(p.measured_per_s)


def test_gain_table(not_helped: Measurements) -> None:
    """Each row follows from t(B) and t(1), pooled over all runs."""
    one, *_, sixteen = verdict(not_helped).gains
    assert (one.batch_size, one.executions, one.times_one, one.gain) == (1, 23_500, 1.0, 1.0)
    assert (sixteen.batch_size, sixteen.executions, sixteen.occupancy_ms) == (16, 2500, 167.0)
    assert sixteen.times_one == pytest.approx(167 / 11)
    assert sixteen.per_s == pytest.approx(16 / 0.167)
    assert sixteen.gain == pytest.approx(16 * 11 / 167)


def test_t1_is_never_invented(helped: Measurements) -> None:
    """Without an execution of one request, every factor over it is unknown."""
    found = verdict(without_single_executions(helped))
    assert all(math.isnan(g.times_one) and math.isnan(g.gain) for g in found.gains)
    assert "t(1) is unknown" in found.explanation


def test_missing_statistics_are_said(helped: Measurements) -> None:
    """Without server statistics the explanation says that there is none."""
    found = verdict(without_statistics(helped))
    assert found.gains == ()
    assert "no statistics" in found.explanation
    assert all(math.isnan(p.predicted_per_s) for p in found.predictions)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({}, "compute filled 83% of the run; the rest went outside compute"),
        ({"schedule_lag_p99_ms": 40.0}, "requests left the client up to 40 ms late (p99)"),
        ({"throughput_per_s": 2900.0}, "which is all that arrived under saturating"),
        ({"throughput_per_s": 2800.0}, "executions overlapped, 1.2 at a time"),
        (
            {"executions": tuple(Executions(batch_size=b, count=300, occupancy_ms=14.0) for b in (2, 32))},
            "batches of uneven size",
        ),
    ],
)
def test_explanation_names_the_difference(helped: Measurements, change: dict[str, object], says: str) -> None:
    """What separates the prediction from the measurement is named from the numbers."""
    changed = [*helped[:-1], replace(helped[-1], **change)]  # type: ignore[arg-type]
    assert says in verdict(changed).explanation


def test_one_verdict_per_model(helped: Measurements, not_helped: Measurements) -> None:
    """Models are kept apart, in order of appearance."""
    other = [replace(m, model="n") for m in not_helped]
    assert [v.model for v in verdicts([*helped, *other])] == ["m", "n"]
    with pytest.raises(InvalidInput, match=r"one model, got 2 \(m, n\)"):
        verdict([*helped, *other])
    with pytest.raises(InvalidInput, match="got 0"):
        verdict([])
