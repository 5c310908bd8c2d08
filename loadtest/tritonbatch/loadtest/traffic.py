"""What a run sends and when, worked out from its options before anything starts; and the part of one worker. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tritonbatch.loadtest.arrivals import schedule
from tritonbatch.loadtest.mixes import Arrivals, classes, mix, with_batches, with_classes
from tritonbatch.loadtest.patterns import pattern
from tritonbatch.loadtest.records import Records
from tritonbatch.loadtest.think_time import ThinkTime, closed

if TYPE_CHECKING:  # importing Locust patches the sockets and threads of the whole process
    from tritonbatch.loadtest.crew import Share

Kind = tuple[int, int]
"""Rows and priority of a request."""

CLOSED_CYCLE = 4096
"""A closed loop has no number of requests; what they are like repeats after so many."""


@dataclass(frozen=True, slots=True)
class Traffic:
    """*arrivals* in an open loop, each with rows and priority; in a closed one they only say what requests are like.

    *rate_per_s* is the mean rate that was asked for, 0 in a closed loop, where nobody asked.
    """

    arrivals: Arrivals
    client_batch: int
    rate_per_s: float
    closed: ThinkTime | None = None

    @property
    def kinds(self) -> list[Kind]:
        """Every kind of request that occurs, in a fixed order."""
        if self.client_batch > 1:
            return [(self.client_batch, 0)]
        pairs = np.unique(np.stack([self.arrivals.rows, self.arrivals.priority]), axis=1)
        return [(int(rows), int(priority)) for rows, priority in pairs.T]


def traffic_of(options: Any) -> Traffic:
    """The traffic that the command line asks for.

    Raises:
        InvalidInput: a pattern, mix, class or trace cannot be.
    """
    loop = closed(options.pattern) if options.pattern.startswith("closed") else None
    rate_per_s = 0.0
    if loop is not None:
        arrivals = Arrivals.at(np.zeros(CLOSED_CYCLE, np.int64))
    elif options.pattern:
        read = pattern(options.pattern)
        arrivals, rate_per_s = read.arrivals(options.seed), read.mean_rate_per_s
    else:
        arrivals = Arrivals.at(schedule(options.arrivals, options.rate, options.requests, options.seed))
        rate_per_s = options.rate
    if options.mix:
        arrivals = with_batches(arrivals, mix(options.mix), options.seed)
    if options.classes:
        arrivals = with_classes(arrivals, classes(options.classes), options.seed)
    return Traffic(arrivals, options.client_batch, rate_per_s, loop)


def share_of(traffic: Traffic, index: int, workers: int) -> npt.NDArray[np.int64]:
    """The numbers of the arrivals that worker *index* of *workers* plays: whole client-side batches in turn."""
    numbers = np.arange(len(traffic.arrivals.at_ns), dtype=np.int64)
    mine: npt.NDArray[np.int64] = numbers[numbers // traffic.client_batch % workers == index]
    return mine


def records_of(traffic: Traffic, numbers: npt.NDArray[np.int64], run: str, options: Any) -> Records:
    """Empty records of the arrivals *numbers*."""
    arrivals = traffic.arrivals
    records = Records(run, options.model, options.variant, arrivals.at_ns[numbers])
    records.sequence[:] = numbers
    records.rows[:] = arrivals.rows[numbers]
    records.batch[:] = records.rows if traffic.client_batch == 1 else traffic.client_batch
    records.priority[:] = arrivals.priority[numbers]
    return records


def closed_records_of(
    traffic: Traffic, share: Share, run: str, options: Any, sent_ns: npt.NDArray[np.int64]
) -> Records:
    """Empty records of a closed loop's requests, numbered in turn over its workers."""
    records = Records(run, options.model, options.variant, sent_ns)
    numbers = share.index + np.arange(len(sent_ns), dtype=np.int64) * share.workers
    like = numbers % len(traffic.arrivals.at_ns)
    records.sequence[:], records.worker[:] = numbers, share.index
    records.rows[:] = records.batch[:] = (
        traffic.arrivals.rows[like] if traffic.client_batch == 1 else traffic.client_batch
    )
    records.priority[:] = traffic.arrivals.priority[like]
    return records


def picker(traffic: Traffic, offsets: Sequence[tuple[int, int]], index: int, workers: int) -> Callable[[int], int]:
    """``pick(sequence)`` of a worker: its requests in turn, as one process alone would send them.

    *offsets* has, for each of ``traffic.kinds``, where its prepared requests begin and how many there are.
    """
    if len(offsets) == 1:
        ((first, count),) = offsets
        return lambda sequence: first + (index + sequence * workers) % count
    place = {kind: number for number, kind in enumerate(traffic.kinds)}
    pairs = zip(traffic.arrivals.rows.tolist(), traffic.arrivals.priority.tolist(), strict=True)
    kind_of = np.array([place[pair] for pair in pairs], np.uint16)
    length = len(kind_of)

    def pick(sequence: int) -> int:
        number = index + sequence * workers
        first, count = offsets[kind_of[number % length]]
        return int(first + number % count)

    return pick
