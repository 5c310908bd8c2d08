"""What a failed request counts as in the records."""

from __future__ import annotations

from tritonbatch.client import Overloaded, TimedOut
from tritonbatch.errors import RequestFailed
from tritonbatch.loadtest.records import STATUSES

REJECTED, TIMEOUT, FAILED = (STATUSES.index(name) for name in ("rejected", "timeout", "failed"))


def status_of(failure: RequestFailed) -> int:
    """The index in STATUSES: a full queue *rejected* it, its time was over (*timeout*), or it *failed* otherwise."""
    if isinstance(failure, Overloaded):
        return REJECTED
    return TIMEOUT if isinstance(failure, TimedOut) else FAILED
