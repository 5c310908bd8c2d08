"""One flat record per request, columnar, the same whoever produced it; every statistic is a fold over records.

Times are nanoseconds since the start of the run on one monotonic clock. ``intended_ns`` is when the arrival process
said that the request should start, ``sent_ns`` when it was handed to the transport, ``done_ns`` when its answer was
complete. A static batch sends many requests together: each keeps its own ``intended_ns``, and ``batch`` is the size
of the client-side batch that carried it (1 when it travelled alone).
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
from tritonbatch.whole_file import whole_file

STATUSES = ("unfinished", "ok", "rejected", "timeout", "failed")
"""What became of a request; the index in this tuple is the code in the ``status`` column in memory."""

OK = STATUSES.index("ok")

SCHEMA = pa.schema(
    [
        ("run", pa.dictionary(pa.int16(), pa.string())),
        ("model", pa.dictionary(pa.int16(), pa.string())),
        ("variant", pa.dictionary(pa.int16(), pa.string())),
        ("priority", pa.uint8()),
        ("batch", pa.uint32()),
        ("intended_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("done_ns", pa.int64()),
        ("status", pa.dictionary(pa.int16(), pa.string())),
    ]
)

Column = npt.NDArray[Any]


@dataclass(slots=True)
class Records:
    """The requests of one run, one array per column, row *i* being the *i*-th arrival.

    ``sent_ns`` and ``done_ns`` are -1 where that moment was never reached.
    """

    run: str
    model: str
    variant: str
    intended_ns: npt.NDArray[np.int64]
    sent_ns: npt.NDArray[np.int64] = field(init=False)
    done_ns: npt.NDArray[np.int64] = field(init=False)
    batch: npt.NDArray[np.uint32] = field(init=False)
    priority: npt.NDArray[np.uint8] = field(init=False)
    status: npt.NDArray[np.uint8] = field(init=False)

    def __post_init__(self) -> None:
        rows = len(self.intended_ns)
        self.sent_ns = np.full(rows, -1, np.int64)
        self.done_ns = np.full(rows, -1, np.int64)
        self.batch = np.ones(rows, np.uint32)
        self.priority = np.zeros(rows, np.uint8)
        self.status = np.zeros(rows, np.uint8)

    def __len__(self) -> int:
        return len(self.intended_ns)


def write_records(records: Records, path: Path) -> None:
    """Write *records* as Parquet, whole or not at all (a temporary file is renamed into place)."""
    rows = len(records)
    table = pa.table(
        {
            "run": _constant(records.run, rows),
            "model": _constant(records.model, rows),
            "variant": _constant(records.variant, rows),
            "priority": records.priority,
            "batch": records.batch,
            "intended_ns": records.intended_ns,
            "sent_ns": records.sent_ns,
            "done_ns": records.done_ns,
            "status": pa.DictionaryArray.from_arrays(records.status.astype(np.int16), list(STATUSES)),
        },
        schema=SCHEMA,
    )
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")


def read_records(path: Path) -> Records:
    """Read what :func:`write_records` wrote.

    Raises:
        InvalidInput: the file is missing, is not Parquet, or lacks a column.
    """
    try:
        table = pq.read_table(path, schema=None)
        first = table.slice(0, 1).to_pylist()
        columns = {name: table.column(name) for name in SCHEMA.names}
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise InvalidInput(
            f"Cannot read records from {path}: {error}; expected a file that `compare` wrote."
        ) from error
    if not first:
        raise InvalidInput(f"{path} holds no records; expected at least one request; run `compare` again.")
    head = first[0]
    records = Records(head["run"], head["model"], head["variant"], _numbers(columns["intended_ns"]))
    records.sent_ns, records.done_ns = _numbers(columns["sent_ns"]), _numbers(columns["done_ns"])
    records.batch, records.priority = _numbers(columns["batch"]), _numbers(columns["priority"])
    records.status = _codes(columns["status"])
    return records


def _constant(text: str, rows: int) -> pa.Array[Any]:
    return pa.DictionaryArray.from_arrays(np.zeros(rows, np.int16), [text])


def _numbers(column: pa.ChunkedArray[Any]) -> Column:
    return column.to_numpy()


def _codes(column: pa.ChunkedArray[Any]) -> npt.NDArray[np.uint8]:
    names = column.cast(pa.string()).to_pylist()
    code = {name: index for index, name in enumerate(STATUSES)}
    return np.array([code[str(name)] for name in names], np.uint8)
