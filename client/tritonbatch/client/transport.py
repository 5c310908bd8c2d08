"""The seam between deciding and acting: how bytes get to a server and back, how to sleep, how to do several at once.

The pipeline in ``core.py`` is written once, as coroutines. With a blocking transport nothing in them ever suspends, so
:func:`finished` runs one to its end on the spot; with an asyncio transport they are ordinary coroutines.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from tritonbatch.client.message import Call, Reply

T = TypeVar("T")


class Hedge(NamedTuple):
    """When a job is started a second time: after *after_s*, if *allowed* says so; *cancel* breaks the loser off."""

    after_s: float
    allowed: Callable[[], bool]
    cancel: bool


class Transport(Protocol):
    """One way of reaching servers, for a whole client."""

    async def exchange(self, address: str, call: Call, timeout_s: float) -> Reply:
        """Send *call* and wait for its reply; cancelled, the connection or stream is dropped."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""

    async def together(self, jobs: Sequence[Callable[[], Coroutine[Any, Any, T]]], limit: int) -> list[T]:
        """Run *jobs*, at most *limit* at once; their results in order, or the first error once the rest has ended."""

    async def first(self, job: Callable[[], Coroutine[Any, Any, T]], hedge: Hedge) -> T:
        """Run *job*, and when it has not ended by then once more as *hedge* says; the first result."""

    def close(self) -> Awaitable[None] | None:
        """Close every connection; requests under way break."""

    def forked(self) -> None:
        """In a child of this process: share nothing with the parent."""


def finished(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine over a blocking transport, which never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    coroutine.close()
    raise RuntimeError("A coroutine over a blocking transport has suspended.")
