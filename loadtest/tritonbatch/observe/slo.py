"""A service level objective as people write it: ``p99=20ms,p50=5ms,errors=0.1%``."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tritonbatch.errors import InvalidInput

UNITS_MS = {"us": 0.001, "ms": 1.0, "s": 1000.0}
EXAMPLE = "expected parts like p99=20ms (units us, ms, s) or errors=0.1%, separated by commas"
_NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
_LATENCY = re.compile(rf"p{_NUMBER}\s*=\s*{_NUMBER}\s*(us|ms|s)")
_ERRORS = re.compile(rf"errors\s*=\s*{_NUMBER}\s*%")


@dataclass(frozen=True, slots=True)
class Objective:
    """At most the share *allowed* of the requests (0 to 1, both excluded) may fail or take longer than *limit_ms*.

    With an infinite *limit_ms* only failures count.
    """

    text: str
    allowed: float
    limit_ms: float

    @property
    def quantile(self) -> float:
        """The quantile that must keep the limit."""
        return 1 - self.allowed


def slo(text: str) -> tuple[Objective, ...]:
    """The objectives in *text*, in its order.

    Raises:
        InvalidInput: there is none, one cannot be read, cannot be, or stands twice.
    """
    objectives = tuple(_objective(part.strip(), text) for part in text.split(","))
    names = [objective.text.partition("=")[0] for objective in objectives]
    if len(set(names)) != len(names):
        raise InvalidInput(f"The SLO {text!r} names {names} twice: expected each percentile once; remove the others.")
    return objectives


def _objective(part: str, whole: str) -> Objective:
    text = re.sub(r"\s+", "", part)
    if latency := _LATENCY.fullmatch(part):
        percent, limit_ms = float(latency[1]), float(latency[2]) * UNITS_MS[latency[3]]
        if 0 < percent < 100 and limit_ms > 0:
            return Objective(text, round(1 - percent / 100, 12), limit_ms)
        raise InvalidInput(f"The SLO {part!r} cannot be: expected a percentile between 0 and 100 and a time above 0.")
    if errors := _ERRORS.fullmatch(part):
        if 0 < float(errors[1]) < 100:
            return Objective(text, float(errors[1]) / 100, float("inf"))
        raise InvalidInput(f"The SLO {part!r} cannot be: expected a percentage of errors between 0 and 100.")
    raise InvalidInput(f"Cannot read {part!r} in the SLO {whole!r}: {EXAMPLE}.")
