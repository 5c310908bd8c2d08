"""The values that say how to call: per client (connections, retries) and per request. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Protocol = Literal["http", "grpc"]
Parameter = bool | int | float | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What one request asks for beside its inputs.

    *version* empty: the server chooses. *priority* 0: the model's default level; 1 is the highest. *request_id* comes
    back in answers and in the server's log. *outputs* empty: all of them. *parameters* go to the backend.
    """

    version: str = ""
    priority: int = 0
    request_id: str = ""
    outputs: tuple[str, ...] = ()
    parameters: Mapping[str, Parameter] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        """Take a list of outputs, or the name of one, for what it means."""
        outputs = (self.outputs,) if isinstance(self.outputs, str) else tuple(self.outputs)
        object.__setattr__(self, "outputs", outputs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """When a request is sent again.

    At most *attempts* times in all, only after TryAgain or Overloaded, after a random wait of up to *first_wait_s*
    doubled with every attempt and never above *longest_wait_s* (at once when another endpoint is healthy).
    *budget_ratio* bounds the storm: over time at most so many retries per answered request, with a reserve of ten.
    With *hedge_after_s*, a request without an answer by then is also sent a second time; the first answer wins and the
    other one is cancelled.
    """

    attempts: int = 3
    first_wait_s: float = 0.05
    longest_wait_s: float = 1.0
    budget_ratio: float = 0.1
    hedge_after_s: float | None = None


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
