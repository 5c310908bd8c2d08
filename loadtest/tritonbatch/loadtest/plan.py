"""Which loads to compare variants under: chosen from what the model was just seen to do, or as the user says.

Two loads tell the whole story. *steady* is a rate that even one request per execution can carry: it compares latency.
*saturating* is above what the best batch can carry, so every variant is behind from start to end and its throughput
is its capacity.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tritonbatch.errors import InvalidInput

STEADY_UTILISATION = 0.5
"""Of 1 / t(1): an execution occupies its instance for longer than its compute, so true utilisation is higher."""
OVERLOAD = 1.25
"""Times B / t(B): enough above capacity that the queue never runs dry, little enough to stay a plausible peak."""
LEAST_REQUESTS, MOST_REQUESTS = 120, 20_000
MOST_GIVEN = 5_000_000
"""Records of a run are held in memory, some 40 bytes each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The arrivals of a run: *requests* of them at *rate_per_s*, from the named *process* with *seed*.

    *loop* is ``open``: arrivals do not wait for answers.
    """

    name: str
    rate_per_s: float
    requests: int
    seed: int
    process: str = "poisson"
    loop: str = "open"


def chosen_loads(curve_ms: dict[int, float], *, seconds: float, seed: int) -> list[Load]:
    """A steady and a saturating load for a model with t(B) = *curve_ms* (milliseconds by batch size).

    *seconds* is about how long serial takes for the saturating load; the steady one lasts half of it.
    """
    serial_per_s = 1000 / curve_ms[1]
    batched_per_s = max(size * 1000 / ms for size, ms in curve_ms.items())
    steady = STEADY_UTILISATION * serial_per_s
    return [
        Load(name="steady", rate_per_s=_rounded(steady), requests=_bounded(steady * seconds / 2), seed=seed),
        Load(
            name="saturating",
            rate_per_s=_rounded(OVERLOAD * batched_per_s),
            requests=_bounded(serial_per_s * seconds),
            seed=seed,
        ),
    ]


def given_loads(rates_per_s: Sequence[float], *, seconds: float, seed: int) -> list[Load]:
    """One load for each rate, *seconds* long.

    Raises:
        InvalidInput: a rate or the duration is not above 0, or together they make too many requests.
    """
    for number, what in [(seconds, "duration"), *((rate, "rate") for rate in rates_per_s)]:
        if not 0 < number < float("inf"):
            raise InvalidInput(f"The {what} is {number}: expected a number above 0.")
    return [
        Load(name=f"{rate:g}/s", rate_per_s=rate, requests=_requests(rate, seconds), seed=seed) for rate in rates_per_s
    ]


def _requests(rate_per_s: float, seconds: float) -> int:
    requests = rate_per_s * seconds
    if not 1 <= requests <= MOST_GIVEN:
        raise InvalidInput(
            f"{rate_per_s:g}/s for {seconds:g} s is {requests:g} requests: expected 1 to {MOST_GIVEN:,}; "
            "change the rate or the duration."
        )
    return round(requests)


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")


def _bounded(requests: float) -> int:
    return min(max(round(requests), LEAST_REQUESTS), MOST_REQUESTS)
