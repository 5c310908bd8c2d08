"""Which of several servers gets the next request: the healthy one with the fewest outstanding. No I/O; thread-safe.

An endpoint that could not be reached, or that is stopping, rests for a while that doubles up to REST_LONGEST_S; after
it one request is sent there as a trial. When all rest, the one whose rest ends first is tried.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tritonbatch.errors import InvalidInput

REST_FIRST_S = 0.1
REST_LONGEST_S = 5.0
MOST_DOUBLINGS = 30

log = logging.getLogger("tritonbatch.client")


@dataclass(slots=True, eq=False)
class Endpoint:
    """One server at *address* (``host:port``, over HTTP also ``host:port/base/path``), and how it fares."""

    address: str
    outstanding: int = 0
    taken: int = 0
    failures: int = 0
    rests_until: float = 0.0
    on_trial: bool = False


class Balancer:
    """Hands out endpoints, least outstanding first; in turn where that is equal."""

    def __init__(self, addresses: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self.endpoints = tuple(Endpoint(address) for address in addresses)
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = 0

    def forked(self) -> None:
        """In a child of this process: nothing is outstanding here, and the lock is free."""
        self._lock = threading.Lock()
        for endpoint in self.endpoints:
            endpoint.outstanding = 0

    def take(self) -> Endpoint:
        """Choose an endpoint for one request; hand it back with :meth:`done`."""
        with self._lock:
            chosen = self.endpoints[0] if len(self.endpoints) == 1 else self._choose()
            if chosen.failures:  # this is the trial: others keep away until its outcome is known
                chosen.rests_until, chosen.on_trial = self._clock() + REST_LONGEST_S, True
            self._turn += 1
            chosen.taken = self._turn
            chosen.outstanding += 1
            return chosen

    def done(self, endpoint: Endpoint, *, healthy: bool | None) -> None:
        """Hand *endpoint* back; *healthy* None says that nothing was learnt about it."""
        with self._lock:
            endpoint.outstanding -= 1
            if healthy is False and endpoint.failures and not endpoint.on_trial:
                return  # it was sent before the first failure: one outage counts once, however many it broke
            if healthy is False:
                rest_s = min(REST_FIRST_S * 2 ** min(endpoint.failures, MOST_DOUBLINGS), REST_LONGEST_S)
                endpoint.failures, endpoint.on_trial = endpoint.failures + 1, False
                endpoint.rests_until = self._clock() + rest_s
                log.info("endpoint %s fails, rests for %.1f s", endpoint.address, rest_s)
            elif healthy and endpoint.failures:
                endpoint.failures, endpoint.rests_until, endpoint.on_trial = 0, 0.0, False
                log.info("endpoint %s answers again", endpoint.address)
            elif endpoint.failures:
                endpoint.rests_until = self._clock()

    def another_is_healthy(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint other than *endpoint* is not resting."""
        now = self._clock()
        return any(each is not endpoint and each.rests_until <= now for each in self.endpoints)

    def _choose(self) -> Endpoint:
        now = self._clock()
        awake = [each for each in self.endpoints if each.rests_until <= now]
        if not awake:
            return min(self.endpoints, key=lambda each: each.rests_until)
        return min(awake, key=lambda each: (each.outstanding, each.taken))


def addresses_of(urls: str | Sequence[str], *, base_path: bool) -> tuple[str, ...]:
    """Check *urls*; a base path after the port, and ``http://`` before it, are allowed where *base_path* says so.

    Raises:
        InvalidInput: there is none, or one has another scheme or no port.
    """
    if not isinstance(urls, Iterable) or isinstance(urls, (bytes, bytearray)):
        raise InvalidInput(f"The addresses are {urls!r}: expected HOST:PORT, or a list of them.")
    given = (urls,) if isinstance(urls, str) else tuple(urls)
    if not given:
        raise InvalidInput("There is no address: expected at least one HOST:PORT.")
    return tuple(_address(each, base_path=base_path) for each in given)


def _address(given: str, *, base_path: bool) -> str:
    if not isinstance(given, str):
        raise InvalidInput(f"The address {given!r} is no text: expected HOST:PORT, as 'localhost:8000'.")
    if given.lower().startswith("https://"):
        raise InvalidInput(
            f"The address {given!r} asks for TLS: expected HOST:PORT without a scheme; give Connections(tls=Tls(…))."
        )
    if "," in given:
        raise InvalidInput(f"The address {given!r} is not one: expected HOST:PORT; give several as a list.")
    address = given.rstrip("/")
    if base_path and address.lower().startswith("http://"):
        address = address[len("http://") :]
    authority, slash, _ = address.partition("/")
    host, _, port = authority.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
    if "://" in address or not _is_host(host) or not is_port or (slash and not base_path):
        raise InvalidInput(f"The address {given!r} is not one: expected HOST:PORT without a scheme, as localhost:8000.")
    return address


def _is_host(host: str) -> bool:
    """Whether *host* can be looked up at all: what IDNA refuses would fail in the socket, with no word about why."""
    try:
        encoded = host.strip("[]").encode("idna")
    except UnicodeError:
        return False
    return bool(encoded) and not any(character.isspace() for character in host)
