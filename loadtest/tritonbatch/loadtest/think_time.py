"""A closed loop, for comparison: so many users, each of whom waits for an answer, thinks, and asks again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tritonbatch.loadtest.pattern_text import Fields, fields_of, kind_of

EXAMPLE = "closed:users=32,seconds=30,think=exponential/10ms"
MOST_USERS = 100_000


@dataclass(frozen=True, slots=True)
class ThinkTime:
    """*users* who for *seconds* each think for *mean_ms* milliseconds between an answer and the next request.

    *kind* is ``none``, ``constant`` or ``exponential``; *text* is the pattern that it was read from.
    """

    text: str
    users: int
    seconds: float
    kind: str = "none"
    mean_ms: float = 0.0

    def think_ms(self, rng: np.random.Generator) -> float:
        """How long one user thinks this time, in milliseconds."""
        return float(rng.exponential(self.mean_ms)) if self.kind == "exponential" else self.mean_ms


def closed(text: str) -> ThinkTime:
    """Read ``closed:users=N,seconds=S[,think=exponential/10ms]`` (or ``think=constant/5ms``, or ``think=none``).

    Raises:
        InvalidInput: another kind, an unknown or missing key, or a value that cannot be.
    """
    _, rest = kind_of(text, {"closed": EXAMPLE})
    fields = fields_of(rest, Fields(text, EXAMPLE, {}), ("users", "seconds"), ("think",))
    users, seconds = fields.count("users"), fields.positive("seconds")
    if users > MOST_USERS:
        raise fields.mistake(f"has users={users}: expected at most {MOST_USERS:,}")
    think = fields.values.get("think", "none")
    if think == "none":
        return ThinkTime(text, users, seconds)
    kind, _, length = think.partition("/")
    if kind not in {"constant", "exponential"} or not length.endswith("ms"):
        raise fields.mistake(f"has think={think}: expected none, constant/TIMEms or exponential/TIMEms")
    mean = Fields(text, EXAMPLE, {"think": length.removesuffix("ms")})
    return ThinkTime(text, users, seconds, kind, mean.positive("think"))
