"""Several requests at once for blocking clients: a few threads, which are greenlets where gevent has patched them.

The threads are made on first need and end with the client; a client that never hedges nor splits has none.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

from tritonbatch.client.errors import Cancelled
from tritonbatch.client.transport import Hedge, finished

T = TypeVar("T")
Job = Callable[[], Coroutine[Any, Any, T]]
WORKERS = 1024
"""The most threads of one kind; they are made when needed, so most clients have none and few have many."""

# Set around a job that somebody may want to break off: transports register there what breaks their exchange.
_on_cancel: contextvars.ContextVar[_Cancellation | None] = contextvars.ContextVar("on_cancel", default=None)


class _Cancellation:
    """What to call to break off the exchange that one job is in; called at once when the job was cancelled before."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._cancelled = False
        self._breaker: Callable[[], object] | None = None

    def run(self, exchange: Callable[[], T], breaker: Callable[[], object]) -> T:
        """Run *exchange*, which *breaker* breaks off; raises Cancelled where that has happened.

        Also when the exchange had ended by then: what it used is broken, and must not be used again.
        """
        with self._lock:
            self._breaker = breaker
            if self._cancelled:
                breaker()
        try:
            result = exchange()
        except Exception as error:
            if self._cancelled:
                raise _lost() from error
            raise
        finally:
            with self._lock:  # what it used, others may use from here on
                self._breaker = None
        if self._cancelled:
            raise _lost()
        return result

    def cancel(self) -> None:
        # Under the lock, so that no breaker is called after its exchange has ended.
        with self._lock:
            self._cancelled = True
            if self._breaker is not None:
                self._breaker()


def _lost() -> Cancelled:
    return Cancelled("Cancelled: another attempt was answered first.")


class Threads:
    """The part of a blocking transport that runs jobs side by side."""

    def __init__(self) -> None:
        # Two, so that split requests which wait for their hedges never hold the threads that those need.
        self._executors: dict[str, ThreadPoolExecutor] = {}
        self._making = threading.Lock()

    async def sleep(self, seconds: float) -> None:
        """Let time pass."""
        time.sleep(seconds)

    async def together(self, jobs: Sequence[Job[T]], limit: int) -> list[T]:
        """Run *jobs*, at most *limit* at once; their results in order, or the first error once the rest has ended."""
        results: list[Any] = [None] * len(jobs)
        failed = threading.Event()
        numbers = iter(range(len(jobs)))
        taking = threading.Lock()

        def work() -> None:
            while not failed.is_set():
                with taking:
                    number = next(numbers, None)
                if number is None:
                    return
                try:
                    results[number] = finished(jobs[number]())
                except BaseException:
                    failed.set()
                    raise

        others = [self._submit("split", work) for _ in range(min(limit, len(jobs)) - 1)]
        try:
            work()
        finally:
            wait(others)
        for other in others:
            other.result()
        return results

    async def first(self, job: Job[T], hedge: Hedge) -> T:
        """Run *job*, and when it has not ended by then once more as *hedge* says; the first result."""
        runs = [self._run(job)]
        cancel = True  # an interrupted caller waits for neither
        try:
            ended, _ = wait([runs[0][0]], timeout=hedge.after_s)
            if not ended and hedge.allowed():
                runs.append(self._run(job))
            result = _first_result([future for future, _ in runs])
            cancel = hedge.cancel
            return result
        finally:
            if cancel:
                for _, cancellation in runs:
                    cancellation.cancel()

    def cancellation(self) -> _Cancellation | None:
        """What the exchange that begins must run under, since somebody may break it off; None if nobody will."""
        return _on_cancel.get()

    def forked(self) -> None:
        """In a child of this process: its parent's threads are not there, and their locks are never released."""
        self._executors, self._making = {}, threading.Lock()

    def close(self) -> None:
        """End the threads."""
        with self._making:
            executors = list(self._executors.values())
            self._executors.clear()
        for executor in executors:
            executor.shutdown(wait=False, cancel_futures=True)

    def _run(self, job: Job[T]) -> tuple[Future[T], _Cancellation]:
        cancellation = _Cancellation()

        def work() -> T:
            token = _on_cancel.set(cancellation)
            try:
                return finished(job())
            finally:
                _on_cancel.reset(token)

        return self._submit("hedge", work), cancellation

    def _submit(self, purpose: str, work: Callable[[], T]) -> Future[T]:
        # In the caller's context, so that a span begun there is the parent of those begun in the thread.
        return self._threads(purpose).submit(contextvars.copy_context().run, work)

    def _threads(self, purpose: str) -> ThreadPoolExecutor:
        with self._making:
            if purpose not in self._executors:
                self._executors[purpose] = ThreadPoolExecutor(WORKERS, f"tritonbatch-{purpose}")
            return self._executors[purpose]


def _first_result(futures: list[Future[T]]) -> T:
    """The first success; when all fail, the error of the first job."""
    waiting = set(futures)
    while waiting:
        ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
        for future in ended:
            if future.exception() is None:
                return future.result()
    return futures[0].result()
