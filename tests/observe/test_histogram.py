"""The latency histogram: its precision, adding up, its text form, and folding many records in little memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.records import OK, Records, write_records
from tritonbatch.observe.histogram import BUCKETS, RELATIVE_ERROR, Histogram, bucket_of, latency_histogram

# Any magnitude is equally likely, so that every power of two is met.
VALUES = st.integers(0, 62).flatmap(lambda bits: st.integers(0, 2 ** (bits + 1) - 1))
MANY = st.lists(VALUES, min_size=1, max_size=80)
QUANTILES = [0.0, 0.001, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 1.0]


def of(*values_ns: int) -> Histogram:
    """A histogram of these values."""
    found = Histogram()
    found.record(np.array(values_ns, np.int64))
    return found


def assert_same(one: Histogram, other: Histogram) -> None:
    """Both hold the same."""
    np.testing.assert_array_equal(one.counts, other.counts)
    exact = [(each.count, each.sum_ns, each.least_ns, each.most_ns) for each in (one, other)]
    assert exact[0] == exact[1]


@settings(deadline=None, max_examples=300)
@given(MANY)
def test_quantiles_are_within_the_stated_error(values: list[int]) -> None:
    """Every quantile is within 1/2048 (below 0.1 %) of the exact one; the ends are exact; quantiles ascend."""
    assert RELATIVE_ERROR <= 0.001
    found = of(*values)
    exact = np.quantile(np.array(values, np.int64), QUANTILES, method="inverted_cdf")
    read = [found.quantile_ns(quantile) for quantile in QUANTILES]
    for mine, true in zip(read, exact, strict=True):
        assert abs(mine - int(true)) <= RELATIVE_ERROR * int(true)
    assert (read[0], read[-1]) == (float(min(values)), float(max(values)))
    assert read == sorted(read)


@given(MANY)
def test_count_ends_and_mean_are_exact(values: list[int]) -> None:
    """No value is rounded into count, least, most, sum or mean, also where their sum needs more than 64 bits."""
    found = of(*values)
    assert (found.count, found.least_ns, found.most_ns) == (len(values), min(values), max(values))
    assert found.sum_ns == sum(values)
    assert found.mean_ns == sum(values) / len(values)


@given(MANY, MANY)
def test_adding_is_recording_both(one: list[int], other: list[int]) -> None:
    """The sum of two histograms is the histogram of all values; an empty one adds nothing."""
    assert_same(of(*one) + of(*other), of(*one, *other))
    assert_same(of(*one) + Histogram(), of(*one))


@given(st.lists(VALUES, max_size=50))
def test_text_and_back_loses_nothing(values: list[int]) -> None:
    """What was written as JSON is what is read, an empty histogram too."""
    assert_same(Histogram.from_json(of(*values).to_json()), of(*values))


@given(VALUES)
def test_buckets_ascend_without_gaps(value: int) -> None:
    """The bucket of the next nanosecond is the same or the next one, and all are inside the table."""
    here, after = bucket_of(np.array([value, min(value + 1, 2**63 - 1)], np.int64))
    assert after - here in {0, 1}
    assert 0 <= here < BUCKETS
    assert here == value or value >= 2048


@pytest.mark.parametrize("bits", range(64))
def test_both_sides_of_every_power_of_two_are_in_their_own_buckets(bits: int) -> None:
    """Where floating point rounds up to the next power of two the bucket is right all the same."""
    edge = 2**bits
    assert of(edge - 1).quantile_ns(0.5) == pytest.approx(edge - 1, rel=RELATIVE_ERROR)
    buckets = bucket_of(np.array([max(edge - 2, 0), edge - 1], np.int64))
    assert buckets[1] - buckets[0] in {0, 1}
    if bits < 63:
        assert int(bucket_of(np.array([edge], np.int64))[0]) == int(buckets[1]) + 1


def test_an_empty_histogram_has_no_figures() -> None:
    """Mean and quantiles of nothing are NaN, never 0."""
    empty = Histogram()
    empty.record(np.empty(0, np.int64))
    assert empty.count == 0
    assert np.isnan([empty.mean_ns, empty.quantile_ns(0.5), empty.quantile_ms(0.99)]).all()


def test_what_cannot_be_is_refused() -> None:
    """Negative latencies and quantiles outside of 0 to 1 are mistakes."""
    with pytest.raises(InvalidInput, match="A latency is -5 ns"):
        of(3, -5)
    for quantile in (-0.1, 1.5, 99, float("nan")):
        with pytest.raises(InvalidInput, match=r"expected a number from 0 to 1, such as 0\.99"):
            of(1).quantile_ns(quantile)


@pytest.mark.parametrize(
    "change",
    [{"count": 7}, {"buckets": [-1]}, {"buckets": [10**6]}, {"counts": [-1]}, {"steps_per_power_of_two": 512}],
)
def test_a_damaged_text_is_refused(change: dict[str, object]) -> None:
    """Counts that do not add up, buckets that do not exist and another precision are named."""
    text = json.dumps({**json.loads(of(5).to_json()), **change})
    with pytest.raises(InvalidInput, match="The text is not a histogram"):
        Histogram.from_json(text)


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"steps_per_power_of_two": 1024}'])
def test_a_foreign_text_is_refused(text: str) -> None:
    """JSON of something else is one sentence."""
    with pytest.raises(InvalidInput, match=r"expected what Histogram\.to_json wrote"):
        Histogram.from_json(text)


def test_latency_counts_from_the_intended_start_of_successful_requests(tmp_path: Path) -> None:
    """Failures are left out, and the raw latency is asked for by name."""
    records = Records("r", "m", "v", np.zeros(4, np.int64))
    records.sent_ns[:] = 1_000_000_000
    records.done_ns[:] = [1_010_000_000, 1_020_000_000, -1, 5_000_000_000]
    records.status[:] = [OK, OK, 0, 4]
    write_records(records, tmp_path / "records.parquet")
    found = latency_histogram(tmp_path)
    assert (found.count, found.least_ns, found.most_ns) == (2, 1_010_000_000, 1_020_000_000)
    raw = latency_histogram([tmp_path / "records.parquet"], since="sent")
    assert (raw.least_ns, raw.most_ns, raw.mean_ns) == (10_000_000, 20_000_000, 15_000_000)


FOLD = """
import re, sys, time
from pathlib import Path
from tritonbatch.observe.histogram import latency_histogram
def peak_kb():  # ru_maxrss would start from the memory of the process that started this one
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text()).group(1))

latency_histogram(Path(sys.argv[1]) / "records-0.parquet")  # what is imported and allocated once
before = peak_kb()
start = time.perf_counter()
found = latency_histogram(Path(sys.argv[1]))
seconds = time.perf_counter() - start
print(found.count, before, peak_kb(), seconds)
"""


def test_folding_many_records_takes_little_memory(tmp_path: Path) -> None:
    """A million records in four files fold within 400 MB in all, and within 40 MB more than one of them does."""
    rng, each = np.random.default_rng(1), 250_000
    for worker in range(4):
        records = Records("r", "m", "v", np.cumsum(rng.integers(1, 40_000, each)))
        records.sequence += worker * each
        records.sent_ns = records.intended_ns + 5_000
        records.done_ns = records.sent_ns + (rng.lognormal(15, 0.5, each)).astype(np.int64)
        records.status[:] = OK
        write_records(records, tmp_path / f"records-{worker}.parquet")
    result = subprocess.run(
        [sys.executable, "-c", FOLD, str(tmp_path)], capture_output=True, text=True, timeout=120, check=True
    )
    count, before_kb, peak_kb, seconds = (float(part) for part in result.stdout.split())
    print(f"folded {count:,.0f} records in {seconds:.2f} s, peak {peak_kb / 1024:.0f} MB")
    assert count == 4 * each
    assert peak_kb < 400 * 1024
    assert peak_kb - before_kb < 40 * 1024
