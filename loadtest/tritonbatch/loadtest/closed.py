"""A closed loop, for comparison: so many users, each waiting for its answer and then for its think time.

It shows what an open loop hides and the other way round: throughput at a concurrency, with latencies that cannot grow
beyond what the users bring, since a slow server slows them down.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gevent import get_hub
from gevent.event import Event

from tritonbatch.loadtest.drive import Start
from tritonbatch.loadtest.records import Records


class ClosedLoop:
    """*users* requests outstanding at any time for *seconds*; the transport calls :meth:`done`.

    *think_ms* gives the pause of a user before its next request; None means none. A request's intended start is when
    it was sent. *describe* fills in what else is known of the records, from how many there are.
    """

    def __init__(
        self,
        users: int,
        think_ms: Callable[[], float] | None,
        seconds: float,
        describe: Callable[[npt.NDArray[np.int64]], Records],
    ) -> None:
        self.complete = False
        self._describe = describe
        self._users = users
        self.finished: list[int] = []
        self.outstanding = 0
        self._think_ms = think_ms
        self._seconds = seconds
        self._sent_ns, self._done_ns, self._status = array("q"), array("q"), array("B")
        self._start: Start = lambda *_: None
        self._start_ns = self._end_ns = 0
        self._over = Event()

    def play(self, start: Start, *, start_ns: int, drain_s: float) -> None:
        """Run from *start_ns* (of ``time.perf_counter_ns``), and wait up to *drain_s* for the last answers."""
        self._start, self._start_ns = start, start_ns
        self._end_ns = int(self._seconds * 1e9)
        loop, timers = get_hub().loop, []
        delay_s = max(0.0, (start_ns - time.perf_counter_ns()) / 1e9)
        for _ in range(self._users):
            timers.append(loop.timer(delay_s))
            timers[-1].start(self._begin)
        self.complete = not self._users or bool(self._over.wait(delay_s + self._seconds + drain_s))
        for timer in timers:
            timer.stop()

    def done(self, sequence: int, status: int) -> None:
        """The transport says that request *sequence* ended with *status* (an index into STATUSES)."""
        now_ns = time.perf_counter_ns() - self._start_ns
        self._done_ns[sequence] = now_ns
        self._status[sequence] = status
        self.finished.append(sequence)
        self.outstanding -= 1
        if now_ns < self._end_ns:
            if self._think_ms is None:
                get_hub().loop.run_callback(self._begin)
            else:
                timer = get_hub().loop.timer(self._think_ms() / 1000)
                timer.start(self._think_over, timer)
        elif not self.outstanding:
            self._over.set()

    @property
    def records(self) -> Records:
        """What happened; requests without an answer are ``unfinished``."""
        found = self._describe(np.array(self._sent_ns, np.int64))
        found.sent_ns[:] = found.intended_ns
        found.done_ns[:] = np.array(self._done_ns, np.int64)
        found.status[:] = np.array(self._status, np.uint8)
        return found

    def ended_since(self, position: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
        """Latency in ms, and status, of the requests that ended after the first *position*."""
        ended = self.finished[position:]
        latency = [(self._done_ns[number] - self._sent_ns[number]) / 1e6 for number in ended]
        return np.array(latency, np.float64), np.array([self._status[number] for number in ended], np.uint8)

    def state(self) -> dict[str, float]:
        """How it stands, for whoever watches; a closed loop has no schedule to lag behind."""
        return {"outstanding": self.outstanding, "lag_ms": 0.0, "cap_waits": 0}

    def facts(self) -> dict[str, Any]:
        """How faithfully it was played."""
        return {"complete": self.complete, "schedule_lag_p99_ms": 0.0, "cap_waits": 0, "saturated": False}

    def _think_over(self, timer: object) -> None:
        timer.close()  # type: ignore[attr-defined]
        self._begin()

    def _begin(self) -> None:
        now_ns = time.perf_counter_ns() - self._start_ns
        if now_ns >= self._end_ns:
            if not self.outstanding:
                self._over.set()
            return
        sequence = len(self._sent_ns)
        self._sent_ns.append(now_ns)
        self._done_ns.append(-1)
        self._status.append(0)
        self.outstanding += 1
        self._start(sequence, 1)
