"""Play a schedule against a transport, open loop, and record what happened to every request.

Open loop: a request starts when the schedule says so, whether or not earlier ones were answered. At most *cap* are
outstanding; reaching the cap delays later ones, which is counted, never hidden: latency runs from the intended start.
Runs under gevent; knows neither Locust nor Triton.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import gevent
import numpy as np
import numpy.typing as npt
from gevent.pool import Pool

from tritonbatch.loadtest.arrivals import client_batches
from tritonbatch.loadtest.records import STATUSES, Records

Send = Callable[[int, int], str]
"""``send(sequence, rows)`` sends the *sequence*-th request with *rows* useful rows and returns its status."""

Report = Callable[[int, int], None]
"""``report(first_row, rows)`` is told of every finished request."""


@dataclass(slots=True)
class Played:
    """How faithfully a schedule was played.

    ``lag_ns`` is, per request sent, how much later than scheduled it was handed to the transport; ``cap_waits`` is how
    many had to wait because *cap* requests were outstanding; ``complete`` is False when the run was interrupted.
    """

    lag_ns: npt.NDArray[np.int64]
    cap: int
    cap_waits: int = 0
    complete: bool = False

    def lag_ms(self, quantile: float) -> float:
        """A quantile of the lag in milliseconds; 0 when nothing was sent."""
        sent = self.lag_ns[self.lag_ns >= 0]
        return float(np.quantile(sent, quantile)) / 1e6 if len(sent) else 0.0


def play(records: Records, send: Send, report: Report, *, client_batch: int, cap: int, drain_s: float) -> Played:
    """Send every request of *records* at its intended start, in client-side batches of *client_batch*.

    Fills *records* in place. After the last arrival it waits up to *drain_s* seconds for answers; requests without one
    keep the status ``unfinished``.
    """
    batches = client_batches(records.intended_ns, client_batch)
    played = Played(np.full(len(batches), -1, np.int64), cap)
    pool = Pool(cap)
    start_ns = time.perf_counter_ns()

    def one(sequence: int, rows: range) -> None:
        status = send(sequence, len(rows))
        part = slice(rows.start, rows.stop)
        records.done_ns[part] = time.perf_counter_ns() - start_ns
        records.status[part] = STATUSES.index(status)
        report(rows.start, len(rows))

    try:
        for sequence, (due_ns, rows) in enumerate(batches):
            _sleep_until(start_ns + due_ns)
            if pool.full():
                played.cap_waits += 1
                pool.wait_available()
            now_ns = time.perf_counter_ns() - start_ns
            played.lag_ns[sequence] = now_ns - due_ns
            part = slice(rows.start, rows.stop)
            records.sent_ns[part], records.batch[part] = now_ns, client_batch
            pool.spawn(one, sequence, rows)
        played.complete = bool(pool.join(timeout=drain_s))
    finally:
        pool.kill(block=False)
    return played


def _sleep_until(moment_ns: int) -> None:
    """Sleep to *moment_ns*; not at all when it has passed, so that a late request is not delayed further."""
    remaining_s = (moment_ns - time.perf_counter_ns()) / 1e9
    if remaining_s > 0:
        gevent.sleep(remaining_s)
