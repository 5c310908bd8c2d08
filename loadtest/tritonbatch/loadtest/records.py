"""One flat record per request, columnar, the same whoever produced it; every statistic is a fold over records.

Times are nanoseconds since the start of the run on one monotonic clock, the same start for all workers.
``intended_ns`` is when the arrival process said that the request should start, ``sent_ns`` when it was handed to the
transport, ``done_ns`` when its answer was complete. A static batch sends many requests together: each keeps its own
``intended_ns`` and ``rows``, and ``batch`` is the rows of the request that carried it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.record_files import (
    CHUNK_ROWS,
    COLUMNS,
    OK,
    SCHEMA,
    STATUSES,
    Chunk,
    Names,
    chunks_of,
    iterate,
)
from tritonbatch.whole_file import whole_file

__all__ = ["OK", "SCHEMA", "STATUSES", "Records", "iterate", "read_records", "record_batch", "write_records"]

PARQUET: dict[str, Any] = {
    "compression": "zstd",
    # Few different values each; for times and numbers of arrivals a dictionary would only cost.
    "use_dictionary": ["run", "model", "variant", "worker", "priority", "rows", "batch", "status"],
}


@dataclass(slots=True)
class Records:
    """The requests of one run, one array per column, row *i* being the *i*-th arrival.

    ``sent_ns`` and ``done_ns`` are -1 where that moment was never reached. ``sequence`` is the number of the arrival in
    the whole run, unique over all workers; ``worker`` who sent it, 0 when there was one; ``rows`` what it stands for.
    """

    run: str
    model: str
    variant: str
    intended_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64] = field(init=False)
    done_ns: npt.NDArray[np.int64] = field(init=False)
    worker: npt.NDArray[np.uint16] = field(init=False)
    sequence: npt.NDArray[np.int64] = field(init=False)
    rows: npt.NDArray[np.uint32] = field(init=False)
    batch: npt.NDArray[np.uint32] = field(init=False)
    priority: npt.NDArray[np.uint8] = field(init=False)
    status: npt.NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        count = len(self.intended_ns)
        self.sent_ns = np.full(count, -1, np.int64)
        self.done_ns = np.full(count, -1, np.int64)
        self.worker = np.zeros(count, np.uint16)
        self.sequence = np.arange(count, dtype=np.int64)
        self.rows = np.ones(count, np.uint32)
        self.batch = np.ones(count, np.uint32)
        self.priority = np.zeros(count, np.uint8)
        self.status = np.zeros(count, np.uint8)

    def __len__(self) -> int:
        return len(self.intended_ns)


def write_records(records: Records, path: Path) -> None:
    """Write *records* as Parquet, whole or not at all (a temporary file is renamed into place)."""
    table = pa.Table.from_batches([record_batch(records)])
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, row_group_size=CHUNK_ROWS, **PARQUET)


def record_batch(records: Records) -> pa.RecordBatch:
    """*records* as Arrow, in the order and types of SCHEMA; numbers are not copied."""
    count = len(records)
    names = [_constant(name, count) for name in (records.run, records.model, records.variant)]
    status = pa.DictionaryArray.from_arrays(records.status.astype(np.int16), list(STATUSES))
    numbers = [pa.array(getattr(records, name), SCHEMA.field(name).type) for name in COLUMNS[:-1]]
    return pa.RecordBatch.from_arrays([*names, *numbers, status], schema=SCHEMA)


def read_records(path: Path, *, partial: bool = False) -> Records:
    """Read one run: a file, or a folder with ``records.parquet`` or the ``records-*.parquet`` of several workers.

    Sorted by ``intended_ns``, then ``sequence``. With *partial*, files that a run left unfinished are read as far as
    they go; without it they are refused, as figures that lack a part of the requests would look like good ones.

    Raises:
        InvalidInput: a file is missing, not Parquet, cut short or lacks a column; there are no records; or the files
            are of different runs, or hold the same arrival twice.
    """
    chunks: list[Chunk] = []
    names: Names | None = None
    for names, chunk in chunks_of(path, COLUMNS, partial=partial):  # noqa: B007 - all are equal, the last is kept
        chunks.append(chunk)
    if names is None or not any(len(chunk["status"]) for chunk in chunks):
        raise InvalidInput(f"{path} holds no records; expected at least one request; run the load test again.")
    records = Records(*names, np.empty(0, np.int64))
    for name in COLUMNS:  # column by column, so that one of them at most is in memory twice
        setattr(records, name, np.concatenate([chunk.pop(name) for chunk in chunks]))
    _sort(records)
    if len(chunks) > 1:
        _check_unique(records, path)
    return records


def _sort(records: Records) -> None:
    gaps = np.diff(records.intended_ns)
    if (gaps > 0).all() or ((gaps >= 0).all() and (np.diff(records.sequence) > 0).all()):
        return
    order = np.lexsort((records.sequence, records.intended_ns))
    for name in COLUMNS:
        setattr(records, name, getattr(records, name)[order])


def _check_unique(records: Records, path: Path) -> None:
    ordered = np.sort(records.sequence)
    if (again := np.flatnonzero(np.diff(ordered) == 0)).size:
        raise InvalidInput(
            f"{path} holds the arrival {ordered[again[0]]} twice: expected each once; "
            "the folder mixes files of different runs."
        )


def _constant(text: str, count: int) -> pa.Array[Any]:
    return pa.DictionaryArray.from_arrays(np.zeros(count, np.int16), [text])
