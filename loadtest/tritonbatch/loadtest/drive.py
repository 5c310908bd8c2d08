"""Play a schedule, open loop, and record what happened to every request.

Open loop: a request starts when the schedule says so, whether or not earlier ones were answered. At most *cap* are
outstanding; reaching the cap delays later ones, which is counted, never hidden: latency runs from the intended start.
Runs in gevent's hub, so that neither sending nor an answer costs a switch; knows neither Locust nor Triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from gevent.event import Event

from tritonbatch.loadtest.records import Records
from tritonbatch.loadtest.timer import Timer

Start = Callable[[int, int], None]
"""``start(sequence, rows)`` begins to send the *sequence*-th request with *rows* useful rows, and returns at once."""

BURST = 64
"""Requests that are sent without a look at the answers in between."""
SATURATED_LAG_MS = 10.0
"""A generator whose requests start later than that at the 99th percentile did not offer the load it was asked for."""


class Player:
    """Plays the schedule of *records* once, in client-side batches; the transport calls :meth:`done`.

    ``finished`` holds the numbers of the requests that have ended, in that order; ``lag_ns``, per request sent, how
    much later than scheduled it was handed to the transport; ``cap_waits`` counts those that waited because *cap* were
    outstanding; ``complete`` stays False when the run was interrupted or answers were missing in the end.
    """

    def __init__(self, records: Records, *, client_batch: int, cap: int) -> None:
        self.records = records
        self.requests = -(-len(records) // client_batch)
        self.cap = cap
        self.cap_waits = 0
        self.complete = False
        self.lag_ns = np.full(self.requests, -1, np.int64)
        self.finished: list[int] = []
        self.outstanding = 0
        self._batch = client_batch
        self._next = 0
        self._waiting = False
        self._start: Start = lambda *_: None
        self._start_ns = 0
        self._over = Event()
        self._timer = Timer(self._send_due)
        # Items of memoryviews are read and set several times faster than those of arrays.
        self._intended_ns, self._sent_ns = records.intended_ns.data, records.sent_ns.data
        self._done_ns, self._status = records.done_ns.data, records.status.data
        self._lag_ns = self.lag_ns.data

    def play(self, start: Start, *, start_ns: int, drain_s: float) -> None:
        """Send every request at its intended start after *start_ns* (``time.perf_counter_ns``); wait for answers.

        A client-side batch leaves when its last row has arrived; the last batch may be short. Up to *drain_s* seconds
        after the last arrival it ends; requests without an answer keep the status ``unfinished``.
        """
        self._start, self._start_ns = start, start_ns
        if self._batch > 1:
            self.records.batch[:] = self._batch
        try:
            if not self.requests:
                self.complete = True
                return
            self._timer.at(self._due_ns(0) + start_ns - time.perf_counter_ns())
            last_s = (self._due_ns(self.requests - 1) + start_ns - time.perf_counter_ns()) / 1e9
            self.complete = bool(self._over.wait(max(0.0, last_s) + drain_s))
        finally:
            self._timer.close()

    def done(self, sequence: int, status: int) -> None:
        """The transport says that request *sequence* ended with *status* (an index into STATUSES)."""
        now_ns = time.perf_counter_ns() - self._start_ns
        for row in self._rows(sequence):
            self._done_ns[row] = now_ns
            self._status[row] = status
        self.finished.append(sequence)
        self.outstanding -= 1
        if self._waiting:
            self._waiting = False
            self._timer.at(1)
        elif not self.outstanding and self._next == self.requests:
            self._over.set()

    def ended_since(self, position: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
        """Latency in ms from the intended start, and status, of the requests that ended after the first *position*."""
        rows = np.array(self.finished[position:], np.int64) * self._batch
        records = self.records
        return (records.done_ns[rows] - records.intended_ns[rows]) / 1e6, records.status[rows]

    def lag_ms(self, quantile: float) -> float:
        """A quantile of how much later than scheduled requests were sent, in milliseconds; 0 when none was."""
        sent = self.lag_ns[: self._next]
        return float(np.quantile(sent, quantile)) / 1e6 if len(sent) else 0.0

    def state(self) -> dict[str, float]:
        """How it stands, for whoever watches."""
        latest = float(self.lag_ns[self._next - 1]) / 1e6 if self._next else 0.0
        return {"outstanding": self.outstanding, "lag_ms": latest, "cap_waits": self.cap_waits}

    def facts(self) -> dict[str, Any]:
        """How faithfully it was played; saturated: the generator, not the server, shaped the load."""
        lag_ms = self.lag_ms(0.99)
        return {
            "complete": self.complete,
            "schedule_lag_p99_ms": lag_ms,
            "cap_waits": self.cap_waits,
            "saturated": self.cap_waits > 0 or lag_ms > SATURATED_LAG_MS,
        }

    def _send_due(self) -> None:
        """Send what is due; then set the timer for the next, or wait for an answer when the cap is reached."""
        for _ in range(BURST):
            if self._next == self.requests:
                return
            now_ns, due_ns = time.perf_counter_ns() - self._start_ns, self._due_ns(self._next)
            if now_ns < due_ns:
                self._timer.at(due_ns - now_ns)
                return
            if self.outstanding >= self.cap:
                self.cap_waits += 1
                self._waiting = True
                return
            self._send(now_ns, now_ns - due_ns)
        self._timer.at(1)  # far behind: answers are looked at in between

    def _send(self, now_ns: int, lag_ns: int) -> None:
        sequence = self._next
        self._next += 1
        self.outstanding += 1
        self._lag_ns[sequence] = lag_ns
        rows = self._rows(sequence)
        for row in rows:
            self._sent_ns[row] = now_ns
        self._start(sequence, len(rows))

    def _rows(self, sequence: int) -> range:
        first = sequence * self._batch
        return range(first, min(first + self._batch, len(self._intended_ns)))

    def _due_ns(self, sequence: int) -> int:
        due_ns: int = self._intended_ns[self._rows(sequence).stop - 1]
        return due_ns
