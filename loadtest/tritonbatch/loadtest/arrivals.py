"""Arrival processes: when requests should start. Pure: rates, a length and a seed in, a schedule out.

Times are nanoseconds from the start of the run, ascending. The same arguments give the same schedule on every
machine, so every variant of a comparison meets the same arrivals. A rate that changes is played exactly: the arrivals
are those of a Poisson process of rate 1, moved through the inverse of the integrated rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tritonbatch.errors import InvalidInput

Schedule = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
NS_PER_S = 1_000_000_000
HALF_NS_S = 0.5e-9
SINE_STEPS = 4096

MOST_ARRIVALS = 5_000_000
"""Records of a run are held in memory, some 50 bytes each."""

DWELL_STREAM, BATCH_STREAM, CLASS_STREAM = 1, 2, 3
"""One stream of random numbers for each thing that is drawn: equal seeds still give independent draws."""


def stream(seed: int, which: int) -> np.random.Generator:
    """The random numbers of one dimension, independent of every other one and of the arrivals of the same *seed*.

    Raises:
        InvalidInput: the seed is negative.
    """
    return np.random.default_rng(np.random.SeedSequence(checked_seed(seed), spawn_key=(which,)))


def checked_seed(seed: int) -> int:
    """*seed* itself.

    Raises:
        InvalidInput: it is negative.
    """
    if seed < 0:
        raise InvalidInput(f"The seed is {seed}: expected 0 or more.")
    return seed


def poisson(rate_per_s: float, requests: int, seed: int) -> Schedule:
    """Independent arrivals at *rate_per_s* on average: exponential gaps, P(gap > t) = exp(-rate * t)."""
    gaps_s = np.random.default_rng(seed).exponential(1.0 / rate_per_s, requests)
    return (np.cumsum(gaps_s) * NS_PER_S).astype(np.int64)


def constant(rate_per_s: float, requests: int, seed: int) -> Schedule:  # noqa: ARG001 - one signature for all
    """Evenly spaced arrivals, 1 / *rate_per_s* apart; *seed* changes nothing."""
    return (np.arange(1, requests + 1) * (NS_PER_S / rate_per_s)).astype(np.int64)


PROCESSES: Mapping[str, Callable[[float, int, int], Schedule]] = {"poisson": poisson, "constant": constant}


def schedule(process: str, rate_per_s: float, requests: int, seed: int) -> Schedule:
    """The schedule of the named arrival *process*.

    Raises:
        InvalidInput: an unknown process, or a rate or count that cannot be.
    """
    if process not in PROCESSES:
        raise InvalidInput(f"Unknown arrival process {process!r}: expected one of {', '.join(sorted(PROCESSES))}.")
    if not (np.isfinite(rate_per_s) and rate_per_s > 0):
        raise InvalidInput(f"The arrival rate is {rate_per_s}/s: expected a number above 0.")
    if requests < 1:
        raise InvalidInput(f"The number of requests is {requests}: expected at least 1.")
    return PROCESSES[process](rate_per_s, requests, checked_seed(seed))


def piecewise(edges_s: Floats, rates_per_s: Floats, seed: int) -> Schedule:
    """Poisson arrivals at ``rates_per_s[i]`` between ``edges_s[i]`` and ``edges_s[i + 1]`` (one edge more than rates).

    ``edges_s`` starts at 0 and ascends; where the rate is 0 nothing arrives.
    """
    masses = np.concatenate([[0.0], np.cumsum(rates_per_s * np.diff(edges_s))])
    points = unit_process(float(masses[-1]), np.random.default_rng(seed))
    return _nanoseconds(np.interp(points, masses, edges_s), float(edges_s[-1]))


def mmpp(rates_per_s: tuple[float, float], dwell_s: float, seconds: float, seed: int) -> Schedule:
    """Markov-modulated Poisson arrivals: two rates in turn, each for an exponential time of mean *dwell_s*.

    Which of the two comes first is drawn too, so the expected rate is their mean at every moment.
    """
    rng = stream(seed, DWELL_STREAM)
    first = int(rng.integers(2))
    edges_s = np.concatenate([[0.0], unit_process(seconds / dwell_s, rng) * dwell_s, [seconds]])
    rates = np.array(rates_per_s)[(np.arange(len(edges_s) - 1) + first) % 2]
    return piecewise(edges_s, rates, seed)


def ramp(first_per_s: float, last_per_s: float, seconds: float, seed: int) -> Schedule:
    """Poisson arrivals whose rate goes in a straight line from *first_per_s* to *last_per_s*."""
    points = unit_process((first_per_s + last_per_s) / 2 * seconds, np.random.default_rng(seed))
    slope = (last_per_s - first_per_s) / seconds
    # The root of first*t + slope*t*t/2 = point in the form that stays exact when the slope or the first rate is 0.
    root = np.sqrt(np.maximum(first_per_s * first_per_s + 2 * slope * points, 0.0))
    return _nanoseconds(2 * points / np.maximum(first_per_s + root, np.finfo(float).tiny), seconds)


def sine(rate_per_s: float, amplitude_per_s: float, period_s: float, seconds: float, seed: int) -> Schedule:
    """Poisson arrivals at rate + amplitude * sin(2 pi t / period); the amplitude is at most the rate."""
    total = float(_sine_mass(np.array([seconds]), rate_per_s, amplitude_per_s, period_s)[0])
    points = unit_process(total, np.random.default_rng(seed))
    return _nanoseconds(_sine_inverse(points, rate_per_s, amplitude_per_s, period_s), seconds)


def unit_process(length: float, rng: np.random.Generator) -> Floats:
    """The points of a Poisson process of rate 1 that lie in [0, *length*), ascending."""
    pieces, end = [], 0.0
    while end < length:  # one piece nearly always suffices: it is six standard deviations longer than needed
        left = length - end
        pieces.append(end + np.cumsum(rng.exponential(1.0, int(left + 6 * left**0.5) + 16)))
        end = float(pieces[-1][-1])
    points = np.concatenate(pieces) if pieces else np.empty(0)
    return points[points < length]


def client_batches(arrivals: Schedule, batch_size: int) -> list[tuple[int, range]]:
    """Form static batches of *batch_size* in order of arrival: when each is sent, and the rows that it carries.

    A batch leaves when its last row has arrived; the last one may be short, and is padded by the sender.
    """
    starts = range(0, len(arrivals), batch_size)
    groups = [range(first, min(first + batch_size, len(arrivals))) for first in starts]
    return [(int(arrivals[rows[-1]]), rows) for rows in groups]


def _nanoseconds(times_s: Floats, seconds: float) -> Schedule:
    """Whole nanoseconds within the run; rounding of the inverse may have swapped neighbours, which is undone."""
    return np.maximum.accumulate((np.clip(times_s, 0.0, seconds) * NS_PER_S).astype(np.int64))


def _sine_mass(times_s: Floats, rate_per_s: float, amplitude_per_s: float, period_s: float) -> Floats:
    swing = amplitude_per_s * period_s / (2 * np.pi)
    mass: Floats = rate_per_s * times_s + swing * (1 - np.cos(2 * np.pi * times_s / period_s))
    return mass


def _sine_inverse(points: Floats, rate_per_s: float, amplitude_per_s: float, period_s: float) -> Floats:
    """Newton's method within one period, from a table; bisection where the rate is near 0 and Newton would leave it."""
    turns = np.floor(points / (rate_per_s * period_s))
    rest = np.maximum(points - turns * (rate_per_s * period_s), 0.0)
    grid = np.linspace(0.0, period_s, SINE_STEPS + 1)
    masses = _sine_mass(grid, rate_per_s, amplitude_per_s, period_s)
    place = np.clip(np.searchsorted(masses, rest), 1, SINE_STEPS)
    low, high = grid[place - 1], grid[place]
    times = np.interp(rest, masses, grid)
    left = np.arange(len(points))
    for _ in range(100):
        here = times[left]
        excess = _sine_mass(here, rate_per_s, amplitude_per_s, period_s) - rest[left]
        low, high = np.where(excess < 0, here, low), np.where(excess < 0, high, here)
        slope = rate_per_s + amplitude_per_s * np.sin(2 * np.pi * here / period_s)
        better = here - excess / np.maximum(slope, np.finfo(float).tiny)
        better = np.where((better > low) & (better < high), better, (low + high) / 2)
        times[left] = better
        moving = np.abs(better - here) > HALF_NS_S
        left, low, high = left[moving], low[moving], high[moving]
        if not len(left):
            break
    return times + turns * period_s
