"""When to send again, decided without clock or network: the attempts, the waits, and the budget against storms."""

from __future__ import annotations

import random
import threading

from tritonbatch.client.errors import Overloaded, TryAgain
from tritonbatch.client.options import Retry
from tritonbatch.errors import RequestFailed

RESERVE = 10.0
MOST_DOUBLINGS = 30


class RetryBudget:
    """Tokens: every answer earns *ratio* of one, every retry or hedge spends one; with none left neither is sent.

    The rule of gRPC's retry throttling: when most requests fail, retries stop, so that they never add more than
    *ratio* to the load of a server that is in trouble.
    """

    def __init__(self, ratio: float) -> None:
        self._ratio = ratio
        self._tokens = RESERVE
        self._lock = threading.Lock()

    def forked(self) -> None:
        """In a child of this process: the lock is free."""
        self._lock = threading.Lock()

    def earn(self) -> None:
        """Count an answered request."""
        if self._tokens < RESERVE:
            with self._lock:
                self._tokens = min(RESERVE, self._tokens + self._ratio)

    def spend(self) -> bool:
        """Take a token for a retry; False when there is none."""
        with self._lock:
            if self._tokens < 1.0:
                return False
            self._tokens -= 1.0
            return True


def wait_before_retry(
    retry: Retry, failure: RequestFailed, attempt: int, left_s: float, rng: random.Random
) -> float | None:
    """Seconds to wait before attempt number *attempt* + 1, or None when the failure is final.

    *attempt* counts from 1; *left_s* is what remains of the deadline.
    """
    if attempt >= retry.attempts or not isinstance(failure, (TryAgain, Overloaded)):
        return None
    doublings = min(attempt - 1, MOST_DOUBLINGS)
    wait_s = rng.uniform(0, min(retry.longest_wait_s, retry.first_wait_s * 2**doublings))
    return wait_s if wait_s < left_s else None
