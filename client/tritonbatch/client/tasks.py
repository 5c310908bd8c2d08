"""Several requests at once for asyncio clients: tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from tritonbatch.client.transport import Hedge
from tritonbatch.errors import InvalidInput

T = TypeVar("T")
Job = Callable[[], Coroutine[Any, Any, T]]


class Tasks:
    """The part of an asyncio transport that runs jobs side by side; for the loop in which it is first used."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._losing: set[asyncio.Future[Any]] = set()

    def _bind(self, loop: asyncio.AbstractEventLoop) -> None:
        """Belong to *loop* from now on.

        Raises:
            InvalidInput: it belongs to another one.
        """
        if self._loop is not None and self._loop is not loop:
            raise InvalidInput("This AsyncClient belongs to another event loop: make one per loop.")
        self._loop = loop

    def forked(self) -> None:
        """Nothing: a child has no running loop, and another one is refused."""

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        await asyncio.sleep(seconds)

    async def together(self, jobs: Sequence[Job[T]], limit: int) -> list[T]:
        """Run *jobs*, at most *limit* at once; their results in order, or the first error once the rest has ended."""
        results: list[Any] = [None] * len(jobs)
        numbers = iter(range(len(jobs)))

        async def work() -> None:
            for number in numbers:
                results[number] = await jobs[number]()

        tasks = [asyncio.ensure_future(work()) for _ in range(min(limit, len(jobs)))]
        try:
            await asyncio.gather(*tasks)
        finally:
            await _cancel(tasks)
        return results

    async def first(self, job: Job[T], hedge: Hedge) -> T:
        """Run *job*, and when it has not ended by then once more as *hedge* says; the first result."""
        tasks = [asyncio.ensure_future(job())]
        try:
            ended, _ = await asyncio.wait(tasks, timeout=hedge.after_s)
            if not ended and hedge.allowed():
                tasks.append(asyncio.ensure_future(job()))
            won = await _first_success(tasks)
            if not hedge.cancel:
                self._let_run([task for task in tasks if not task.done()])
                tasks.clear()
            return won.result()
        finally:
            await _cancel(tasks)

    async def _end_losing(self) -> None:
        """Cancel what lost and still runs."""
        await _cancel(tuple(self._losing))

    def _let_run(self, losing: Sequence[asyncio.Future[Any]]) -> None:
        for task in losing:
            self._losing.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._losing.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, so that asyncio does not complain that nobody did


async def _first_success(tasks: Sequence[asyncio.Future[T]]) -> asyncio.Future[T]:
    """The task that succeeds first; when all fail, the first one."""
    waiting = set(tasks)
    while waiting:
        ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            if task.exception() is None:
                return task
    return tasks[0]


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
