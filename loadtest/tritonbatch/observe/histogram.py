"""A histogram of latencies of constant relative precision, in constant memory however many requests there were.

Log-linear, as HdrHistogram: every power of two is cut into 1024 equal buckets, so a bucket is at most 1/1024 of its
lower bound wide, and its middle is within 1/2048 (0.049 %) of every value in it. Below 2048 ns every nanosecond has a
bucket of its own. Histograms of several workers, files or runs add up without loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.records import OK, iterate

STEP_BITS = 10
STEPS = 1 << STEP_BITS
"""Buckets in every power of two."""
RELATIVE_ERROR = 1 / (2 * STEPS)
"""The most that a quantile differs from a recorded value, as a share of it."""
BUCKETS = (63 - STEP_BITS) * STEPS + STEPS
"""Enough for every int64 that is not negative: some 400 KB."""

Nanoseconds = npt.NDArray[np.int64]


@dataclass(slots=True, eq=False)
class Histogram:
    """Counts of values, nanoseconds from 0 to 2**63 - 1; count, least, most and sum are kept exactly beside them.

    ``least`` and ``most`` mean nothing while ``count`` is 0.
    """

    counts: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(BUCKETS, np.int64))
    count: int = 0
    sum_ns: int = 0
    least_ns: int = 2**63 - 1
    most_ns: int = 0

    def record(self, values_ns: Nanoseconds) -> None:
        """Count each of *values_ns*.

        Raises:
            InvalidInput: one of them is negative.
        """
        if not len(values_ns):
            return
        least = int(values_ns.min())
        if least < 0:
            raise InvalidInput(f"A latency is {least} ns: expected none below 0; are the records of one run and clock?")
        found = np.bincount(bucket_of(values_ns))
        self.counts[: len(found)] += found
        self.count += len(values_ns)
        self.sum_ns += _exact_sum(values_ns)
        self.least_ns, self.most_ns = min(self.least_ns, least), max(self.most_ns, int(values_ns.max()))

    def __add__(self, other: Histogram) -> Histogram:
        """The histogram of the values of both."""
        return Histogram(
            self.counts + other.counts,
            self.count + other.count,
            self.sum_ns + other.sum_ns,
            min(self.least_ns, other.least_ns),
            max(self.most_ns, other.most_ns),
        )

    @property
    def mean_ns(self) -> float:
        """Exact; NaN when empty."""
        return self.sum_ns / self.count if self.count else float("nan")

    def quantile_ns(self, quantile: float) -> float:
        """The smallest recorded value that at least the share *quantile* of all are not above; NaN when empty.

        Within RELATIVE_ERROR of the exact one; exact for 0 and 1.

        Raises:
            InvalidInput: *quantile* is not in [0, 1].
        """
        if not 0 <= quantile <= 1:
            raise InvalidInput(f"The quantile is {quantile}: expected a number from 0 to 1, such as 0.99.")
        if not self.count:
            return float("nan")
        rank = max(1, rank_of(quantile, self.count))
        bucket = int(np.searchsorted(np.cumsum(self.counts), rank))
        if rank in {1, self.count}:
            return float(self.least_ns if rank == 1 else self.most_ns)
        return min(max(_middle_ns(bucket), float(self.least_ns)), float(self.most_ns))

    def quantile_ms(self, quantile: float) -> float:
        """:meth:`quantile_ns` in milliseconds."""
        return self.quantile_ns(quantile) / 1e6

    def to_json(self) -> str:
        """As text; only buckets that hold something are written."""
        held = np.flatnonzero(self.counts)
        value = {
            "steps_per_power_of_two": STEPS,
            "count": self.count,
            "sum_ns": self.sum_ns,
            "least_ns": self.least_ns,
            "most_ns": self.most_ns,
            "buckets": held.tolist(),
            "counts": self.counts[held].tolist(),
        }
        return json.dumps(value)

    @classmethod
    def from_json(cls, text: str) -> Histogram:
        """Read what :meth:`to_json` wrote.

        Raises:
            InvalidInput: the text is none, or its counts do not fit together.
        """
        try:
            return _read(json.loads(text))
        except (ValueError, KeyError, TypeError, IndexError, OverflowError) as error:
            raise InvalidInput(
                f"The text is not a histogram ({error}): expected what Histogram.to_json wrote."
            ) from error


def bucket_of(values_ns: Nanoseconds) -> Nanoseconds:
    """The index of each value's bucket: its power of two, and its 10 bits below the highest one."""
    # The exponent of a float is the power of two, but above 2**53 it may have been rounded up: one too high.
    exponent = np.frexp(values_ns.astype(np.float64))[1].astype(np.int64) - 1
    shift = np.maximum(exponent - STEP_BITS, 0)
    shift -= ((values_ns >> shift) < STEPS) & (shift > 0)
    found: Nanoseconds = (shift << STEP_BITS) + (values_ns >> shift)
    return found


def rank_of(quantile: float, count: int) -> int:
    """How many of *count* values the quantile is not below: ceil(quantile * count), free of rounding upwards."""
    exact = quantile * count
    nearest = round(exact)
    return nearest if abs(exact - nearest) < 1e-9 * max(1.0, exact) else int(np.ceil(exact))


def latency_histogram(
    paths: Path | Sequence[Path], *, since: Literal["intended", "sent"] = "intended", partial: bool = False
) -> Histogram:
    """The latencies of the successful requests in *paths* (files or folders), folded piece by piece.

    *since* the intended start, or since the moment of sending. How many failed is no part of it: count them beside it.

    Raises:
        InvalidInput: the records cannot be read (see ``read_records``), or a latency is negative.
    """
    start = f"{since}_ns"
    found = Histogram()
    for chunk in iterate(paths, ["status", "done_ns", start], partial=partial):
        good = chunk["status"] == OK
        found.record(chunk["done_ns"][good] - chunk[start][good])
    return found


def _exact_sum(values_ns: Nanoseconds) -> int:
    """The sum as a Python integer; halves of 32 bits each cannot overflow in 64."""
    return (int((values_ns >> 32).sum()) << 32) + int((values_ns & 0xFFFFFFFF).sum())


def _middle_ns(bucket: int) -> float:
    """The middle of the values of *bucket*."""
    shift = max(bucket // STEPS - 1, 0)
    low = (bucket - shift * STEPS) << shift
    return low + ((1 << shift) - 1) / 2


def _read(value: Mapping[str, Any]) -> Histogram:
    if value["steps_per_power_of_two"] != STEPS:
        raise ValueError(f"it has {value['steps_per_power_of_two']} buckets in a power of two, not {STEPS}")
    found = Histogram(
        count=int(value["count"]),
        sum_ns=int(value["sum_ns"]),
        least_ns=int(value["least_ns"]),
        most_ns=int(value["most_ns"]),
    )
    buckets, counts = np.array(value["buckets"], np.int64), np.array(value["counts"], np.int64)
    if len(buckets) and buckets.min() < 0:
        raise ValueError("a bucket is negative")
    found.counts[buckets] = counts
    if found.counts.sum() != found.count or (counts < 0).any():
        raise ValueError("the buckets do not add up to the count")
    return found
