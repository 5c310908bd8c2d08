"""Arrival processes: when requests should start. Pure: a rate, a count and a seed in, a schedule out.

Times are nanoseconds from the start of the run, ascending. The same arguments give the same schedule on every
machine, so every variant of a comparison meets the same arrivals.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from tritonbatch.errors import InvalidInput

Schedule = npt.NDArray[np.int64]
NS_PER_S = 1_000_000_000


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
    if seed < 0:
        raise InvalidInput(f"The seed is {seed}: expected 0 or more.")
    return PROCESSES[process](rate_per_s, requests, seed)


def client_batches(arrivals: Schedule, batch_size: int) -> list[tuple[int, range]]:
    """Form static batches of *batch_size* in order of arrival: when each is sent, and the rows that it carries.

    A batch leaves when its last row has arrived; the last one may be short, and is padded by the sender.
    """
    starts = range(0, len(arrivals), batch_size)
    groups = [range(first, min(first + batch_size, len(arrivals))) for first in starts]
    return [(int(arrivals[rows[-1]]), rows) for rows in groups]
