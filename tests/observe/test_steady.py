"""What of a run is warm-up, and whether the rest was steady: series made by hand, and simulated queues."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.loadtest.records import OK, STATUSES, Records
from tritonbatch.observe.steady import rises, steadiness, warm_up

SERVICE_NS = 1_000_000


def queue(requests: int, utilisation: float, seed: int, *, start: int = 0) -> Records:
    """M/D/1: Poisson arrivals at one server that takes 1 ms; the records from the *start*-th arrival on."""
    gaps = np.random.default_rng(seed).exponential(SERVICE_NS / utilisation, start + requests)
    arrived = np.cumsum(gaps).astype(np.int64)
    served = SERVICE_NS * np.arange(len(arrived))
    done = np.maximum.accumulate(arrived - served) + served + SERVICE_NS
    return answered(arrived[start:], done[start:])


def answered(intended_ns: npt.NDArray[np.int64], done_ns: npt.NDArray[np.int64]) -> Records:
    """Records of requests that all succeeded."""
    records = Records("run", "model", "variant", intended_ns)
    records.sent_ns, records.done_ns = intended_ns.copy(), done_ns
    records.status[:] = OK
    return records


def noise(level: float, count: int) -> npt.NDArray[np.float64]:
    """Latencies around *level* without any trend."""
    return level * np.random.default_rng(7).lognormal(0.0, 0.1, count)


@pytest.mark.parametrize(
    ("latency", "least", "most"),
    [
        (noise(10, 1000), 0, 0),
        (np.concatenate([noise(50, 60), noise(10, 940)]), 55, 65),
        (np.concatenate([np.linspace(100, 10, 200), noise(10, 1800)]), 150, 250),
        (np.concatenate([noise(10, 800), noise(500, 50), noise(10, 1150)]), 0, 0),
        (np.full(500, 3.0), 0, 0),
        (np.concatenate([noise(50, 20), noise(10, 15)]), 0, 0),
        (np.arange(1.0, 1001.0), 500, 500),
        ([], 0, 0),
    ],
    ids=["level", "cold", "settling", "a stall in the middle", "constant", "too few", "never settles", "none"],
)
def test_the_warm_up_is_what_has_another_level(latency: npt.ArrayLike, least: int, most: int) -> None:
    """A cold start is dropped; a stall amid like requests is a result, and stays; half is the most."""
    found = warm_up(latency)
    assert least <= found.drop <= most
    assert found.why.endswith(".")


@given(st.lists(st.floats(0, 1e6), max_size=300))
def test_never_more_than_half_is_dropped(latency: list[float]) -> None:
    """Whatever the latencies are, at least half of the requests remain."""
    assert 0 <= warm_up(latency).drop <= len(latency) / 2


@pytest.mark.parametrize(
    ("series", "expected", "slope"),
    [
        (np.arange(20.0), True, 1.0),
        (-np.arange(20.0), False, -1.0),
        (np.zeros(20), False, 0.0),
        ([0, 1] * 10, False, 0.0),
        ([*range(19), 1e9], True, 1.0),
    ],
)
def test_a_trend_is_found_whatever_single_values_do(series: npt.ArrayLike, expected: bool, slope: float) -> None:  # noqa: FBT001
    """Rising, falling, flat, alternating, and rising with an outlier."""
    assert rises(series) == (expected, pytest.approx(slope))


@pytest.mark.parametrize("utilisation", [0.3, 0.7, 0.9])
def test_a_queue_below_saturation_is_steady(utilisation: float) -> None:
    """Of 20 runs on a warm server that is busy 30 to 90 % of the time, at least 19 are steady."""
    found = [steadiness(queue(5000, utilisation, seed, start=2000)) for seed in range(20)]
    assert sum(each.state == "steady" for each in found) >= 19
    assert all(each.warm_up.drop <= 2500 for each in found)


@pytest.mark.parametrize("utilisation", [1.05, 1.25, 3.0])
def test_a_queue_above_saturation_is_not(utilisation: float) -> None:
    """Of 20 overloaded runs at least 19 are not steady, and the backlog grows by what the server cannot serve."""
    found = [steadiness(queue(5000, utilisation, seed)) for seed in range(20)]
    growing = [each for each in found if each.state == "backlog grows"]
    assert len(growing) >= 19
    growth = np.median([each.backlog_growth_per_s for each in growing])
    assert growth == pytest.approx(1000 * (utilisation - 1), rel=0.4)
    assert all("the backlog grows by" in each.sentence for each in growing)


def test_latency_that_grows_without_a_backlog_is_said() -> None:
    """A server that becomes slower and slower answers all, and is not steady all the same."""
    intended = np.arange(2000, dtype=np.int64) * 100_000_000
    found = steadiness(answered(intended, intended + np.linspace(1e6, 9e6, 2000).astype(np.int64)))
    assert found.state == "latency grows"
    assert "the median latency grows" in found.sentence


def test_failed_requests_in_the_warm_up_are_dropped_with_it() -> None:
    """The number to drop counts requests of every status."""
    latency_ns = (np.concatenate([noise(50, 200), noise(10, 1800)]) * 1e6).astype(np.int64)
    intended = np.arange(2000, dtype=np.int64) * 100_000_000
    records = answered(intended, intended + latency_ns)
    records.status[:200:2] = STATUSES.index("failed")
    assert 190 <= steadiness(records).warm_up.drop <= 210


@pytest.mark.parametrize("status", ["ok", "failed", "unfinished"])
@pytest.mark.parametrize("requests", [0, 1, 50])
def test_too_few_requests_tell_nothing(requests: int, status: str) -> None:
    """Without 100 answered requests the state is unknown, not steady."""
    records = answered(np.arange(requests, dtype=np.int64), np.arange(requests, dtype=np.int64) + 5)
    records.status[:] = STATUSES.index(status)
    assert steadiness(records).state == "unknown"
