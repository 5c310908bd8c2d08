"""Find each record's request in the server's trace: by the request id it was sent with, else by order. Pure.

The generator sends the id ``<run>-<sequence>`` while the trace is on; of a client-side batch, the first record's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.records import OK, Records
from tritonbatch.observe.trace import Trace, batch_sizes

Numbers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Which request of the trace carried each record.

    ``row`` is the row of the trace, one per record, -1 for none; the records of a client-side batch share one.
    ``certainty`` is the share of the joined requests whose partner is beyond doubt: 1 by id; by order, those that no
    neighbour was sent so close to that the two could have changed places on the way. ``complete`` says whether every
    record with a usable answer was found, as it is at a trace rate of 1.
    """

    row: Numbers
    by: Literal["id", "order"]
    certainty: float
    complete: bool


def request_ids(run: str, sequence: Numbers) -> list[str]:
    """The ids that requests carry while the trace is on."""
    return [f"{run}-{number}" for number in sequence.tolist()]


def join(records: Records, trace: Trace) -> Joined:
    """Join by request id where the trace has ids, else the k-th request sent to the k-th that started.

    Raises:
        InvalidInput: the trace has no request of the model, its ids are of another run or not unique, or there are
            none and the counts do not fit each other.
    """
    candidates = np.flatnonzero((trace.model == records.model) & (trace.parent < 0))
    if not len(candidates):
        raise InvalidInput(
            f"The trace has no request of model {records.model!r}, only of {sorted(set(trace.model.tolist()))}: "
            "expected the trace that was on during this run."
        )
    leader = leaders(records)
    by_id = any(trace.request_id[candidates].tolist())
    first = np.flatnonzero(leader == np.arange(len(leader)))
    joining = _by_id if by_id else _by_order
    pair, certainty = joining(records, trace, candidates, first)
    row = pair[leader]
    row[records.sent_ns < 0] = -1
    complete = bool((row[records.status == OK] >= 0).all())
    return Joined(row=row, by="id" if by_id else "order", certainty=certainty, complete=complete)


def leaders(records: Records) -> Numbers:
    """For each record, the index of the first record of the client-side batch that carried it (itself when alone).

    Records of one batch follow each other in their worker's sequence and were sent at the same moment.
    """
    order = np.lexsort((records.sequence, records.worker))
    worker = records.worker[order]
    sent_ns, shared = records.sent_ns[order], (records.batch > records.rows)[order]
    follows = np.zeros(len(order), np.bool_)
    follows[1:] = shared[1:] & (sent_ns[1:] >= 0) & (sent_ns[1:] == sent_ns[:-1]) & (worker[1:] == worker[:-1])
    start = np.maximum.accumulate(np.where(follows, 0, np.arange(len(order))))
    found = np.empty(len(order), np.int64)
    found[order] = order[start]
    return found


def _by_id(records: Records, trace: Trace, candidates: Numbers, first: Numbers) -> tuple[Numbers, float]:
    rows = dict(zip(trace.request_id[candidates].tolist(), candidates.tolist(), strict=True))
    names = request_ids(records.run, records.sequence[first])
    pair = np.full(len(records), -1, np.int64)
    pair[first] = [rows.get(name, -1) for name in names]
    found = first[pair[first] >= 0]
    if not len(found):
        raise InvalidInput(
            f"The trace has requests of model {records.model!r}, such as {next(iter(rows))!r}, but none of this run: "
            f"expected ids such as {names[0]!r}; give the trace that was on during this run."
        )
    ids, counts = np.unique(trace.request_id[candidates], return_counts=True)
    twice = set(ids[counts > 1].tolist()) & set(names)
    if twice:
        raise InvalidInput(
            f"The request id {min(twice)!r} stands in the trace more than once: expected one run's requests; trace "
            "each run into files of its own, or name the runs differently."
        )
    answered = found[records.status[found] == OK]
    if len(wrong := answered[~_possible(records, trace, answered, pair[answered])]):
        raise InvalidInput(
            f"Request {records.run}-{records.sequence[wrong[0]]} was longer in the server than its client waited, as "
            f"were {len(wrong) - 1} others: expected the trace of this run; two runs must not share their ids."
        )
    return pair, 1.0


def _by_order(records: Records, trace: Trace, candidates: Numbers, first: Numbers) -> tuple[Numbers, float]:
    sent = first[records.sent_ns[first] >= 0]
    good, ran = sent[records.status[sent] == OK], candidates[trace.compute_end_ns[candidates] >= 0]
    if len(sent) == len(candidates):
        requests, rows = sent, candidates
    elif len(good) == len(ran):
        requests, rows = good, ran
    else:
        raise InvalidInput(
            f"The trace has {len(candidates)} requests of model {records.model!r}, {len(ran)} of them executed, the "
            f"records have {len(sent)} sent, {len(good)} of them answered: expected equal counts to join by order; "
            "trace every request (rate 1) and only this run, or send request ids."
        )
    requests = requests[np.argsort(records.sent_ns[requests], kind="stable")]
    possible = _possible(records, trace, requests, rows)
    pair = np.full(len(records), -1, np.int64)
    pair[requests[possible]] = rows[possible]
    certain = possible & _apart(records.sent_ns[requests], trace.request_start_ns[rows])
    return pair, float(certain.mean()) if len(certain) else 0.0


def _possible(records: Records, trace: Trace, requests: Numbers, rows: Numbers) -> Flags:
    """Whether a client waited at least as long as its request was in the server."""
    in_server_ns = _answering_ns(trace, rows) - trace.request_start_ns[rows]
    possible: Flags = in_server_ns <= (records.done_ns - records.sent_ns)[requests]
    return possible


def _answering_ns(trace: Trace, rows: Numbers) -> Numbers:
    """The latest moment that is certainly before the answer left.

    The answer is sent while the outputs are written, so that COMPUTE_END and REQUEST_END may come after its arrival.
    """
    output_start_ns: Numbers = trace.compute_output_start_ns[rows]
    return np.where(output_start_ns >= 0, output_start_ns, trace.request_start_ns[rows])


def _apart(sent_ns: Numbers, start_ns: Numbers) -> Flags:
    """Whether both neighbours were sent further away than the way to the server varies (its middle 98 %)."""
    if len(sent_ns) < 2:
        return np.ones(len(sent_ns), np.bool_)
    low, high = np.quantile(start_ns - sent_ns, [0.01, 0.99])
    wide = np.diff(sent_ns) > high - low
    apart: Flags = np.concatenate([[True], wide]) & np.concatenate([wide, [True]])
    return apart


def with_rows(trace: Trace, records: Records, joined: Joined) -> Trace:
    """*trace* with ``batch`` in rows: what a joined request carried; a request of somebody else counts as one row."""
    rows = np.ones(len(trace), np.int64)
    found = joined.row >= 0
    rows[joined.row[found]] = records.batch[found]
    return replace(trace, batch=batch_sizes(trace.execution, rows))


def clock_offset_ns(records: Records, trace: Trace, joined: Joined) -> tuple[int, int] | None:
    """Bounds of the constant that turns a record's time into the server's; None where no constant fits.

    No request reaches the server before it was sent, and none begins to be answered after its answer had come. On one
    host both clocks are the same monotonic one, and the constant is the start of the run; across hosts the bounds say
    how well the two can be laid beside each other. The split uses durations only.
    """
    good = (joined.row >= 0) & (records.status == OK)
    rows = joined.row[good]
    seen_ns = np.where(trace.receive_ns[rows] >= 0, trace.receive_ns[rows], trace.request_start_ns[rows])
    if not len(rows):
        return None
    low = int((_answering_ns(trace, rows) - records.done_ns[good]).max())
    high = int((seen_ns - records.sent_ns[good]).min())
    return (low, high) if low <= high else None
