"""Several requests at once for asyncio clients: tasks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Job = Callable[[], Coroutine[Any, Any, T]]


class Tasks:
    """The part of an asyncio transport that runs jobs side by side."""

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

    async def first(self, job: Job[T], other: Job[T], after_s: float) -> T:
        """Run *job*, and when it has not ended after *after_s* also *other*; the first result, the rest cancelled."""
        tasks = [asyncio.ensure_future(job())]
        try:
            ended, _ = await asyncio.wait(tasks, timeout=after_s)
            if not ended:
                tasks.append(asyncio.ensure_future(other()))
            waiting = set(tasks)
            while waiting:
                ended, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in ended:
                    if task.exception() is None:
                        return task.result()
            return tasks[0].result()
        finally:
            await _cancel(tasks)


async def _cancel(tasks: Sequence[asyncio.Future[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
