"""Patterns of arrivals: what the text means, that the rate is the one asked for, and what cannot be."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.arrivals import MOST_ARRIVALS, schedule
from tritonbatch.loadtest.patterns import pattern
from tritonbatch.loadtest.think_time import closed

# A pattern, and its mean rate in each of six equal windows of its length.
EXPECTED: list[tuple[str, list[float]]] = [
    ("constant:rate=500,seconds=30", [500] * 6),
    ("poisson:rate=500,seconds=30", [500] * 6),
    ("poisson:rate=500,requests=15000", [500] * 6),
    ("onoff:rate=1000,on=5,off=10,seconds=30", [1000, 0, 0] * 2),
    ("onoff:rate=1000,on=5,off=10,idle=40,seconds=30", [1000, 40, 40] * 2),
    ("onoff:rate=1000,on=2,off=1,seconds=6", [1000, 1000, 0] * 2),
    ("ramp:from=0,to=600,seconds=30", [50, 150, 250, 350, 450, 550]),
    ("ramp:from=600,to=0,seconds=30", [550, 450, 350, 250, 150, 50]),
    ("ramp:from=300,to=300,seconds=30", [300] * 6),
    ("step:rates=100/0/400,seconds=30", [100, 100, 0, 0, 400, 400]),
    ("sine:rate=300,amplitude=0,period=10,seconds=30", [300] * 6),
    ("sine:rate=300,amplitude=300,period=10,seconds=30", [300 + 600 / np.pi, 300 - 600 / np.pi] * 3),
]


@pytest.mark.parametrize(("text", "rates"), EXPECTED)
def test_every_window_has_the_arrivals_of_its_rate(text: str, rates: list[float]) -> None:
    """Counts in six windows are within five standard deviations of the integrated rate; silence is silent."""
    found = pattern(text)
    counts, _ = np.histogram(found.schedule(3) / 1e9, 6, (0, found.seconds))
    window_s = found.seconds / 6
    for count, rate in zip(counts, rates, strict=True):
        assert abs(count - rate * window_s) <= 5 * (rate * window_s) ** 0.5
    assert found.mean_rate_per_s == pytest.approx(np.mean(rates))


def test_arrivals_within_a_window_follow_the_rate_function() -> None:
    """Moved through the integrated rate, the arrivals of a sine have gaps of mean and standard deviation 1."""
    times = pattern("sine:rate=3000,amplitude=3000,period=3,seconds=30").schedule(5) / 1e9
    mass = 3000 * times + 3000 * 3 / (2 * np.pi) * (1 - np.cos(2 * np.pi * times / 3))
    gaps = np.diff(mass)
    assert gaps.mean() == pytest.approx(1, rel=0.02)
    assert gaps.std() == pytest.approx(1, rel=0.03)
    troughs = np.abs(times % 3 - 2.25) < 0.05
    assert 0 < np.count_nonzero(troughs) < 10 * 0.1 * 3000 * 0.02, "hardly anything arrives where the rate is near 0"


def test_a_modulated_process_is_at_one_of_its_rates() -> None:
    """Windows much shorter than the dwell time have about 100 or 1000 per second, each about half of the time."""
    found = pattern("mmpp:low=100,high=1000,dwell=2,seconds=400")
    counts, _ = np.histogram(found.schedule(4) / 1e9, 1600, (0, 400))
    low, high = np.count_nonzero(counts < 60), np.count_nonzero(counts > 180)
    assert low + high > 0.8 * len(counts), "the rest are windows in which the rate changed"
    assert 0.3 < low / (low + high) < 0.7
    assert found.mean_rate_per_s == 550


def test_equal_seeds_do_not_tie_the_dwell_times_to_the_arrivals() -> None:
    """Over many seeds a modulated process starts with either rate, and its total varies more than Poisson's does."""
    totals = np.array([len(pattern("mmpp:low=10,high=200,dwell=5,seconds=10").schedule(seed)) for seed in range(200)])
    assert totals.mean() == pytest.approx(1050, rel=0.1)
    assert totals.std() > 5 * 1050**0.5


def test_a_schedule_is_the_same_on_every_machine() -> None:
    """The first arrivals of a known seed, as literal nanoseconds."""
    assert pattern("poisson:rate=100,requests=3").schedule(1).tolist() == [10730290, 13814821, 67569190]
    assert pattern("poisson:rate=100,seconds=1").schedule(1)[:3].tolist() == [10730290, 13814821, 67569190]
    assert pattern("constant:rate=100,seconds=0.03").schedule(1).tolist() == [10_000_000, 20_000_000, 30_000_000]
    assert pattern("ramp:from=0,to=200,seconds=2").schedule(1)[:2].tolist() == pytest.approx(
        [int(1e9 * (2 * 1.0730290 / 100) ** 0.5), int(1e9 * (2 * 1.3814821 / 100) ** 0.5)], abs=200
    )


@pytest.mark.parametrize("process", ["poisson", "constant"])
def test_a_number_of_requests_is_exact(process: str) -> None:
    """With requests the schedule is that of the plain process, and seconds is how long it takes in expectation."""
    found = pattern(f"{process}:rate=250,requests=1000")
    np.testing.assert_array_equal(found.schedule(9), schedule(process, 250, 1000, 9))
    assert (found.seconds, found.mean_rate_per_s) == (4.0, 250.0)


def rates(draw: Callable[[st.SearchStrategy[float]], float], low: float = 50.0) -> float:
    """A rate with a few digits."""
    return round(draw(st.floats(low, 2000)), 2)


@st.composite
def texts(draw: Callable[[st.SearchStrategy[float]], float]) -> str:
    """Any pattern without a file, with a hundred to some ten thousand arrivals."""
    seconds, part, other = (round(draw(st.floats(2, 20)), 3) for _ in range(3))
    high, low = sorted((rates(draw), rates(draw)), reverse=True)
    return draw(
        st.sampled_from(
            [
                f"constant:rate={high},seconds={seconds}",
                f"poisson:rate={high},seconds={seconds}",
                f"onoff:rate={high},on={part},off={other},seconds={seconds}",
                f"onoff:rate={high},on={part},off={other},idle={low},seconds={seconds}",
                f"mmpp:low={low},high={high},dwell={part},seconds={seconds}",
                f"ramp:from={low},to={high},seconds={seconds}",
                f"ramp:from={high},to=0,seconds={seconds}",
                f"step:rates={high}/0/{low},seconds={seconds}",
                f"sine:rate={high},amplitude={low},period={part},seconds={seconds}",
            ]
        )  # type: ignore[arg-type]
    )


@settings(deadline=None, derandomize=True)
@given(texts(), st.integers(0, 2**40))
def test_schedules_ascend_within_their_length_at_their_mean_rate(text: str, seed: int) -> None:
    """Any pattern: int64, ascending, inside the run, the same twice, and within five sigma of its mean."""
    found = pattern(text)
    times = found.schedule(seed)
    assert times.dtype == np.int64
    assert times[0] >= 0
    assert (np.diff(times) >= 0).all()
    assert times[-1] <= found.seconds * 1e9
    np.testing.assert_array_equal(times, pattern(text).schedule(seed))
    expected = found.mean_rate_per_s * found.seconds
    variance = expected
    if text.startswith("mmpp"):  # which of the two rates it has, and for how long, varies too
        low, high, dwell, seconds = (float(part.partition("=")[2]) for part in text.split(","))
        swing = (high - low) / 2
        variance += swing**2 * (dwell * seconds - dwell**2 / 2 * (1 - np.exp(-2 * seconds / dwell)))
    assert abs(len(times) - expected) <= 5 * variance**0.5 + 1


def test_a_pattern_is_a_value() -> None:
    """Equal texts are equal patterns, a copy sent to another process draws the same, and no field can be set."""
    found = pattern("step:rates=100/200,seconds=4")
    assert found == pattern("step:rates=100/200,seconds=4")
    copy = pickle.loads(pickle.dumps(found))  # noqa: S301 - made here
    np.testing.assert_array_equal(copy.schedule(2), found.schedule(2))
    with pytest.raises(AttributeError):
        found.seconds = 3  # type: ignore[misc]
    arrivals = found.arrivals(2)
    assert (arrivals.rows == 1).all()
    assert (arrivals.priority == 0).all()


def test_a_trace_is_played_as_recorded_or_faster(tmp_path: Path) -> None:
    """Times, rows and priorities come from the file for every seed; speed divides the times."""
    file = tmp_path / "a,b=c.csv"
    file.write_text("arrival_ms,batch,priority\n100,1,0\n300,4,2\n1100,2,1\n")
    found = pattern(f"trace:{file}")
    arrivals = found.arrivals(1)
    assert arrivals.at_ns.tolist() == found.schedule(2).tolist() == [0, 200_000_000, 1_000_000_000]
    assert arrivals.rows.tolist() == [1, 4, 2]
    assert arrivals.priority.tolist() == [0, 2, 1]
    assert (found.seconds, found.mean_rate_per_s) == (1.0, 3.0)
    assert pattern(f"trace:{file},speed=2").schedule(1).tolist() == [0, 100_000_000, 500_000_000]
    file.write_text("5\n5\n")
    assert (pattern(f"trace:{file}").seconds, pattern(f"trace:{file}").mean_rate_per_s) == (1.0, 2.0)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has the kind '': expected one of poisson, constant, onoff, mmpp, ramp, step, sine, trace"),
        ("pareto:rate=1", "has the kind 'pareto'"),
        ("poisson", "has '' where KEY=VALUE is expected; write for example poisson:rate=500,seconds=10"),
        ("poisson:500", "has '500' where KEY=VALUE is expected"),
        ("poisson:rate=5,second=1", "unknown key 'second': expected rate, seconds, requests"),
        ("poisson:rate=5,rate=6,seconds=1", "has rate twice"),
        ("poisson:seconds=1", "lacks rate: expected rate"),
        ("poisson:rate=5", "both or neither of seconds and requests"),
        ("poisson:rate=5,seconds=1,requests=5", "both or neither"),
        ("poisson:rate=nan,seconds=1", "has rate=nan: expected a number"),
        ("poisson:rate=inf,seconds=1", "has rate=inf: expected a number"),
        ("poisson:rate=fast,seconds=1", "has rate=fast: expected a number"),
        ("poisson:rate=0,seconds=1", "has rate=0: expected a number above 0"),
        ("poisson:rate=-5,seconds=1", "has rate=-5: expected a number above 0"),
        ("poisson:rate=5,seconds=0", "has seconds=0"),
        ("poisson:rate=5,requests=0", "requests=0: expected a whole number"),
        ("poisson:rate=5,requests=1.5", "requests=1.5: expected a whole number"),
        ("poisson:rate=5,requests=" + "9" * 5000, "expected a whole number"),
        ("constant:rate=1e12,seconds=1e12", "expected at most 1e"),
        ("constant:rate=1e-9,seconds=1", "makes 1e-09 arrivals: expected 1 to 5,000,000"),
        ("poisson:rate=1e6,seconds=6", r"makes 6e\+06 arrivals: expected 1 to 5,000,000"),
        ("poisson:rate=1e-6,seconds=1e9", r"lasts 1e\+09 s: expected at most 1e\+08"),
        ("onoff:rate=5,on=1,seconds=3", "lacks off"),
        ("onoff:rate=5,on=1,off=1,idle=-1,seconds=30", "has idle=-1: expected no number below 0"),
        ("onoff:rate=5,on=1e-6,off=1e-6,seconds=30", "changes its rate"),
        ("mmpp:low=100,high=10,dwell=1,seconds=30", "has low=100 above high=10"),
        ("mmpp:low=1,high=10,dwell=1e-7,seconds=30", "changes its rate"),
        ("ramp:from=0,to=0,seconds=30", "makes 0 arrivals"),
        ("step:rates=100//200,seconds=30", "has rates=100//200: expected a number"),
        ("step:rates=0/0,seconds=30", "makes 0 arrivals"),
        ("sine:rate=100,amplitude=200,period=1,seconds=30", "has amplitude=200 above rate=100"),
        ("trace:", "names no file"),
        ("trace:x.csv,speed=0", "has speed=0"),
        ("trace:/nowhere/x.csv", r"Cannot read arrivals from /nowhere/x\.csv"),
    ],
)
def test_patterns_that_cannot_be_are_refused(text: str, says: str) -> None:
    """One sentence that names the mistake, and shows what would be right."""
    with pytest.raises(InvalidInput, match=says) as refusal:
        pattern(text)
    assert "\n" not in str(refusal.value)
    assert "write for example" in str(refusal.value) or text.startswith("trace:/")


def test_the_example_in_every_message_is_right() -> None:
    """What a message shows can be used as it is."""
    for kind in ("poisson", "constant", "onoff", "mmpp", "ramp", "step", "sine"):
        with pytest.raises(InvalidInput) as refusal:
            pattern(f"{kind}:nonsense=1")
        shown = str(refusal.value).rpartition(" ")[2].removesuffix(".")
        assert 1 < len(pattern(shown).schedule(0)) < MOST_ARRIVALS


def test_a_run_without_arrivals_and_a_negative_seed_are_refused() -> None:
    """A pattern so short that this seed gives nothing says so, as no figure could come of it."""
    short = pattern("poisson:rate=1,seconds=1")
    empty = next(seed for seed in range(100) if not len(short.draw(seed)))
    with pytest.raises(InvalidInput, match=f"has no arrival with the seed {empty}"):
        short.schedule(empty)
    for text in ("poisson:rate=9,seconds=9", "mmpp:low=1,high=9,dwell=1,seconds=9"):
        with pytest.raises(InvalidInput, match="seed is -1"):
            pattern(text).schedule(-1)


def test_a_closed_loop_has_users_who_think() -> None:
    """Users and think time are read; exponential ones have the mean asked for, constant ones are constant."""
    rng = np.random.default_rng(0)
    exponential = closed("closed:users=32,seconds=30,think=exponential/10ms")
    assert (exponential.users, exponential.seconds, exponential.mean_ms) == (32, 30.0, 10.0)
    assert np.mean([exponential.think_ms(rng) for _ in range(5000)]) == pytest.approx(10, rel=0.1)
    assert closed("closed:users=1,seconds=30,think=constant/2.5ms").think_ms(rng) == 2.5
    assert (
        closed("closed:users=1,seconds=30").think_ms(rng)
        == closed("closed:users=1,seconds=30,think=none").think_ms(rng)
        == 0
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("open:users=3", "has the kind 'open': expected one of closed"),
        ("closed", "has '' where KEY=VALUE"),
        ("closed:think=none,seconds=3", "lacks users"),
        ("closed:users=3", "lacks seconds"),
        ("closed:users=3,seconds=0", "has seconds=0"),
        ("closed:users=0,seconds=30", "users=0: expected a whole number"),
        ("closed:users=1000000,seconds=30", "expected at most 100,000"),
        (
            "closed:users=3,seconds=30,think=10ms",
            "has think=10ms: expected none, constant/TIMEms or exponential/TIMEms",
        ),
        ("closed:users=3,seconds=30,think=constant/10", "has think=constant/10"),
        ("closed:users=3,seconds=30,think=constant/xms", "has think=x: expected a number"),
        ("closed:users=3,seconds=30,think=constant/-1ms", "has think=-1"),
    ],
)
def test_closed_loops_that_cannot_be_are_refused(text: str, says: str) -> None:
    """One sentence that names the mistake and shows an example."""
    with pytest.raises(InvalidInput, match=says) as refusal:
        closed(text)
    assert "write for example closed:users=32,seconds=30,think=exponential/10ms" in str(refusal.value)
