"""How sure a figure is: 95 % intervals that know how neighbouring latencies, and repeats of a run, resemble each other.

Latencies of one run are autocorrelated: a burst makes a whole group of them slow. So blocks of consecutive requests
are resampled, not single ones (circular moving-block bootstrap). The block length is 4 times the integrated
autocorrelation time of "slower than the quantile", at least the cube root of the number of requests, at most a quarter
of it. Repeats differ by more than that (placement, clock, neighbours on the machine): over several runs, runs are
resampled too, and the interval is widened as Student's t asks for so few of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

CONFIDENCE = 0.95
TAILS = ((1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2)
REPLICATES = 500
DRAWS = 2000
"""Resampled sets of runs; they cost next to nothing."""
MOST_CELLS = 1000
"""A run is cut into at most this many cells, and blocks start where cells start: bounds the work for long runs."""
THRESHOLDS = 200
Z = NormalDist().inv_cdf(TAILS[1])
STUDENT = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)
"""The 97.5 % point of Student's t for 1 to 10 degrees of freedom."""


@dataclass(frozen=True, slots=True)
class Interval:
    """An *estimate* and the 95 % interval around it; *high* is infinite where too few requests bound the quantile."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Figure:
    """One run's figure and the standard error that its requests alone give it."""

    value: float
    error: float


def correlation_time(series: npt.ArrayLike) -> float:
    """The integrated autocorrelation time, in steps: n values tell as much as n / this many independent ones.

    At least 1; summed up to the first lag that is 5 times the sum so far (Sokal's window).
    """
    x = np.asarray(series, np.float64)
    x = x - x.mean() if len(x) else x
    if len(x) < 20 or not x.any():
        return 1.0
    spectrum = np.fft.rfft(x, 1 << (2 * len(x) - 1).bit_length())
    covariance = np.fft.irfft(np.abs(spectrum) ** 2)[: len(x) // 2]
    times = 2 * np.cumsum(covariance / covariance[0]) - 1
    wide_enough = np.arange(len(times)) >= 5 * times
    return max(1.0, float(times[int(np.argmax(wide_enough)) if wide_enough.any() else -1]))


def tail_correlation_time(latency: Floats, quantile: float) -> float:
    """The correlation time of "at or above the *quantile*" along *latency*, in order of intended start."""
    return correlation_time(latency >= np.quantile(latency, quantile, method="inverted_cdf"))


def block_length(latency: Floats, quantile: float) -> int:
    """How many consecutive requests to resample together; the rule is in this module's docstring."""
    wanted = max(math.cbrt(len(latency)), 4 * tail_correlation_time(latency, quantile))
    return max(1, min(math.ceil(wanted), len(latency) // 4))


def quantile_replicates(latency: Floats, quantile: float, seed: int = 0, replicates: int = REPLICATES) -> Floats:
    """The *quantile* of *replicates* block-resampled copies of *latency* (at least one value, in intended order).

    Each copy is a sum of per-block counts below some thresholds, so that one matrix product makes all of them.
    """
    count, length = len(latency), block_length(latency, quantile)
    thresholds = _thresholds(latency, quantile, length)
    blocks = _block_counts(latency, thresholds, length)
    per_copy = max(1, round(count / (blocks[:, -1].mean())))
    drawn = np.random.default_rng(seed).integers(len(blocks), size=(replicates, per_copy))
    drawn += len(blocks) * np.arange(replicates)[:, None]
    weights = np.bincount(drawn.ravel(), minlength=replicates * len(blocks)).reshape(replicates, -1)
    below = weights.astype(np.float32) @ blocks
    reached = below[:, :-1] >= quantile * below[:, -1:] - 1e-3
    return np.asarray(thresholds[np.where(reached.any(axis=1), reached.argmax(axis=1), -1)])


def quantile_interval(latency: npt.ArrayLike, quantile: float, seed: int = 0) -> Interval:
    """The *quantile* of one run's latencies with its 95 % interval; NaN without any latency.

    *latency* is in order of intended start, in any unit. The interval is the wider one, at each end, of the block
    bootstrap and of the order statistics that as many independent requests as these are worth would bound it with:
    in the tail of a short run the bootstrap alone, which knows no latency it has not seen, covers 75 % instead of 95 %.
    The upper end is infinite when no latency seen bounds the quantile.
    """
    values = np.asarray(latency, np.float64)
    if not len(values):
        return Interval(math.nan, math.nan, math.nan)
    low, high = np.quantile(quantile_replicates(values, quantile, seed), TAILS)
    independent = len(values) / tail_correlation_time(values, quantile)
    reach = Z * math.sqrt(quantile * (1 - quantile) / independent)
    lowest = np.quantile(values, max(0.0, quantile - reach))
    above = quantile + reach + 1 / independent
    highest = np.quantile(values, above) if above < 1 else math.inf
    return Interval(float(np.quantile(values, quantile)), float(min(low, lowest)), float(max(high, highest)))


def mean_interval(runs: Sequence[Figure], seed: int = 0) -> Interval:
    """The mean of a figure over repeats, and its 95 % interval from run to run."""
    return _contrast(((1.0, runs),), seed)


def difference_interval(before: Sequence[Figure], after: Sequence[Figure], seed: int = 0) -> Interval:
    """Mean of *after* minus mean of *before*; on logarithms it is the log of their ratio.

    A side with a single run borrows the run-to-run spread of the other. With one run each that spread is unknown, and
    the interval covers the noise within the runs alone.
    """
    return _contrast(((-1.0, before), (1.0, after)), seed)


def student(degrees: float) -> float:
    """The 97.5 % point of Student's t; *degrees* of freedom are rounded down, and 1 at least."""
    whole = max(1, math.floor(min(degrees, 1e9)))
    if whole <= len(STUDENT):
        return STUDENT[whole - 1]
    return Z + (Z**3 + Z) / (4 * whole) + (5 * Z**5 + 16 * Z**3 + 3 * Z) / (96 * whole**2)


def _contrast(sides: Sequence[tuple[float, Sequence[Figure]]], seed: int) -> Interval:
    rng = np.random.default_rng(seed)
    estimate = sum(sign * float(np.mean([f.value for f in runs])) for sign, runs in sides)
    spreads = [float(np.var([f.value for f in runs], ddof=1)) for _, runs in sides if len(runs) > 1]
    borrowed = math.sqrt(float(np.mean(spreads))) if spreads else 0.0
    deviation = np.zeros(DRAWS)
    for sign, runs in sides:
        deviation += sign * _deviations(runs, rng, borrowed)
    widen = student(_degrees(sides)) / Z if spreads else 1.0
    low, high = np.quantile(deviation, TAILS) * widen
    return Interval(estimate, estimate + float(low), estimate + float(high))


def _deviations(runs: Sequence[Figure], rng: np.random.Generator, borrowed: float) -> Floats:
    """How far the mean of resampled *runs* lies from their mean, by copy: runs first, then the noise within each."""
    values, errors = np.array([f.value for f in runs]), np.array([f.error for f in runs])
    count = len(values)
    drawn = rng.integers(count, size=(DRAWS, count))
    within = rng.normal(size=drawn.shape) * errors[drawn]
    if count == 1:
        return np.asarray(within[:, 0] + rng.normal(0.0, borrowed, DRAWS))
    # Resampled values spread by (n - 1) / n too little.
    between = (values[drawn] - values.mean()) * math.sqrt(count / (count - 1))
    return np.asarray((between + within).mean(axis=1))


def _degrees(sides: Sequence[tuple[float, Sequence[Figure]]]) -> float:
    """Welch and Satterthwaite's degrees of freedom of the sides that were repeated."""
    repeated = [(len(runs), float(np.var([f.value for f in runs], ddof=1))) for _, runs in sides if len(runs) > 1]
    parts = [(spread / count, count - 1) for count, spread in repeated]
    denominator = sum(part**2 / degrees for part, degrees in parts)
    return sum(part for part, _ in parts) ** 2 / denominator if denominator else sum(d for _, d in parts)


def _thresholds(latency: Floats, quantile: float, length: int) -> Floats:
    """Ascending candidate values for the quantile: all order statistics that a copy may come up with, thinned."""
    count = len(latency)
    reach = 8 * math.sqrt(quantile * (1 - quantile) * length / count) + 2 / count
    first, last = (min(max(round(edge * count), 0), count - 1) for edge in (quantile - reach, quantile + reach))
    ranks = np.unique(np.linspace(first, last, min(THRESHOLDS, last - first + 1)).round().astype(np.int64))
    return np.partition(latency, ranks)[ranks]


def _block_counts(latency: Floats, thresholds: Floats, length: int) -> npt.NDArray[np.float32]:
    """Per circular block of about *length* requests, how many lie at or below each threshold; last column: how many."""
    count, columns = len(latency), len(thresholds) + 1
    stride = max(1, math.ceil(count / MOST_CELLS))
    cells = math.ceil(count / stride)
    at = np.searchsorted(thresholds, latency) + columns * (np.arange(count) // stride)
    per_cell = np.bincount(at, minlength=cells * columns).reshape(cells, columns)
    width = min(cells, max(1, round(length / stride)))
    ring = np.concatenate([per_cell, per_cell[: width - 1]]).cumsum(axis=0, dtype=np.int64)
    blocks = ring[width - 1 :].copy()
    blocks[1:] -= ring[:-width]
    return blocks.cumsum(axis=1).astype(np.float32)
