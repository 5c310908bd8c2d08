"""The values that say how to call: per client (connections, retries) and per request. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Integral, Real
from pathlib import Path
from typing import Literal

from tritonbatch.errors import InvalidInput

Protocol = Literal["http", "grpc"]
Parameter = bool | int | float | str
_NAME, _VALUE = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"), re.compile(r"[\t\x20-\x7e]*")


RESERVED = {
    "priority": "set Options(priority=…)",
    "timeout": "it is what is left of timeout_s, where the model allows it",
    "binary_data_output": "tensors always travel as binary data",
    **dict.fromkeys(("sequence_id", "sequence_start", "sequence_end"), "sequences are not supported"),
}
"""Names of parameters that Triton reads itself, and what to do instead."""
LONGEST_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one request asks for beside its inputs.

    *version* empty: the server chooses. *priority* 0: the model's default level; 1 is the highest. *request_id* comes
    back in answers and in the server's log. *outputs* empty: all of them; one name will do. *parameters* go to the
    backend.
    """

    version: str = ""
    priority: int = 0
    request_id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Take a list of outputs, or the name of one, for what it means; refuse what cannot be sent."""
        object.__setattr__(self, "outputs", _output_names(self.outputs))
        for name in ("version", "request_id"):
            if not isinstance(value := getattr(self, name), str):
                raise InvalidInput(f"The {name} is {value!r}: expected text, as {str(value)!r}.")
        if type(self.priority) is not int or not 0 <= self.priority < 2**32:
            raise InvalidInput(
                f"The priority is {self.priority!r}: expected an integer, 0 for the default or 1 and up."
            )
        if not isinstance(self.parameters, Mapping):
            raise InvalidInput(f"The parameters are {self.parameters!r}: expected a mapping of names to values.")
        for name, value in self.parameters.items():
            if not isinstance(name, str):
                raise InvalidInput(f"The parameter {name!r} has no name: expected text, as {str(name)!r}.")
            if name in RESERVED:
                raise InvalidInput(f"The parameter {name!r} is Triton's own: expected another name; {RESERVED[name]}.")
            if not isinstance(value, (bool, int, float, str)) or (type(value) is int and not -(2**63) <= value < 2**63):
                raise InvalidInput(f"The parameter {name!r} is {value!r}: expected bool, int, float or str.")


def _output_names(outputs: str | Iterable[str]) -> tuple[str, ...]:
    """A list of outputs, or the name of one, as a tuple."""
    names = (outputs,) if isinstance(outputs, str) else tuple(outputs) if isinstance(outputs, Iterable) else (outputs,)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInput(f"The outputs are {outputs!r}: expected names, as ('y',).")
    if len(set(names)) < len(names):
        raise InvalidInput(f"The outputs are {names}: expected each name once.")
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a request is sent again.

    At most *attempts* times in all, only after TryAgain or Overloaded, after a random wait of up to *first_wait_s*
    doubled with every attempt and never above *longest_wait_s* (at once when another endpoint is healthy).
    *budget_ratio* bounds the storm: over time at most so many retries per answered request, with a reserve of ten.
    With *hedge_after_s*, a request without an answer by then is also sent a second time, if the budget has a token left
    for that; the first answer wins and the other one is cancelled. Where the model has a queue delay the other one is
    left to run, since there a cancelled request holds up its neighbours.
    """

    attempts: int = 3
    first_wait_s: float = 0.05
    longest_wait_s: float = 1.0
    budget_ratio: float = 0.1
    hedge_after_s: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if type(self.attempts) is not int:
            raise InvalidInput(f"The attempts are {self.attempts!r}: expected an integer, 1 or more.")
        if self.attempts < 1:
            raise InvalidInput(f"The attempts are {self.attempts}: expected 1 or more; retry=None sends once.")
        for name in ("first_wait_s", "longest_wait_s", "budget_ratio", "hedge_after_s"):
            value = getattr(self, name)
            if value is None and name == "hedge_after_s":
                continue
            if not isinstance(value, Real) or not 0 <= float(value) < math.inf:
                raise InvalidInput(f"{name} is {value!r}: expected a finite number, 0 or more.")


NO_RETRY = Retry(attempts=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Encrypted connections to servers whose certificates *ca_file* (PEM; None: the system's authorities) has signed.

    With *certificate_file* and *key_file* the client shows who it is, as mutual TLS asks. Over HTTP it takes a proxy in
    front of Triton, which itself speaks TLS over gRPC only.
    """

    ca_file: str | Path | None = None
    certificate_file: str | Path | None = None
    key_file: str | Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """How endpoints are connected to.

    At most *limit* connections per endpoint are open over HTTP, each carrying one request at a time; callers beyond it
    wait within their deadline. gRPC carries all requests on one. *headers* go with every request. With *tls*
    everything is encrypted.
    """

    limit: int = 64
    tls: Tls | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse a limit below 1, and headers that would not stay one line each."""
        if type(self.limit) is not int or self.limit < 1:
            raise InvalidInput(f"The limit of connections is {self.limit!r}: expected an integer, 1 or more.")
        if not isinstance(self.headers, Mapping):
            raise InvalidInput(f"The headers are {self.headers!r}: expected a mapping of names to texts.")
        for name, value in self.headers.items():
            if not isinstance(name, str) or not isinstance(value, str):
                raise InvalidInput(f"The header {name!r}: {value!r} cannot be sent: expected texts.")
            if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
                raise InvalidInput(
                    f"The header {name!r}: {value!r} cannot be sent: expected one line of printable ASCII."
                )


def check_connections(connections: object) -> None:
    """Raise InvalidInput where *connections* are none."""
    if not isinstance(connections, Connections):
        raise InvalidInput(f"connections is {connections!r}: expected Connections(…).")


def whole(name: str, value: object) -> int:
    """*value* of the option *name* as an integer.

    Raises:
        InvalidInput: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{name} is {value!r}: expected an integer, 1 or more.")
    return int(value)


def seconds(timeout_s: float) -> float:
    """*timeout_s*, at most a day.

    Raises:
        InvalidInput: it is no finite number.
    """
    if not isinstance(timeout_s, Real) or not math.isfinite(timeout_s):
        raise InvalidInput(f"The timeout is {timeout_s!r}: expected seconds, a finite number.")
    return min(float(timeout_s), LONGEST_S)
