"""The files that records lie in: which columns, which files of a folder, and reading them piece by piece.

A finished file is Parquet. One that is still being written is ``NAME.partial``, an Arrow IPC stream: Parquet has its
index at the end and cannot be read without it, while a stream is readable up to its last whole batch at any moment,
and appending to it costs the load generator no encoding.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.errors import InvalidInput

STATUSES = ("unfinished", "ok", "rejected", "timeout", "failed")
"""What became of a request; the index in this tuple is the code in the ``status`` column in memory."""

OK = STATUSES.index("ok")

SCHEMA = pa.schema(
    [
        ("run", pa.dictionary(pa.int16(), pa.string())),
        ("model", pa.dictionary(pa.int16(), pa.string())),
        ("variant", pa.dictionary(pa.int16(), pa.string())),
        ("worker", pa.uint16()),
        ("sequence", pa.int64()),
        ("priority", pa.uint8()),
        ("rows", pa.uint32()),
        ("batch", pa.uint32()),
        ("intended_ns", pa.int64()),
        ("sent_ns", pa.int64()),
        ("done_ns", pa.int64()),
        ("status", pa.dictionary(pa.int16(), pa.string())),
    ]
)

NAMES = ("run", "model", "variant")
"""The same for every record of a run."""
COLUMNS = tuple(name for name in SCHEMA.names if name not in NAMES)
"""One number per record (the status as its code)."""
NEWER = frozenset({"worker", "sequence", "rows"})
"""Files written before these columns existed stand for worker 0, their row number, and 1."""

PARTIAL = ".partial"
CHUNK_ROWS = 1 << 18
"""Records that are in memory at a time: some 15 MB."""

Column = npt.NDArray[Any]
Chunk = dict[str, Column]
Names = tuple[str, str, str]
"""Run, model, variant."""


def iterate(paths: Path | Sequence[Path], columns: Collection[str], *, partial: bool = False) -> Iterator[Chunk]:
    """Yield the *columns* of all records in *paths*, some 260 thousand at a time, in the order of the files.

    Each path is a file or a folder as for :func:`read_records`. Memory does not grow with the files.

    Raises:
        InvalidInput: as :func:`read_records` does, or a column that records do not have.
    """
    for name in columns:
        if name not in COLUMNS:
            raise InvalidInput(f"Records have no column of numbers {name!r}: expected one of {', '.join(COLUMNS)}.")
    for path in [paths] if isinstance(paths, Path) else paths:
        for _, chunk in chunks_of(path, columns, partial=partial):
            yield chunk


def chunks_of(path: Path, columns: Collection[str], *, partial: bool) -> Iterator[tuple[Names, Chunk]]:
    """Yield run, model and variant beside the *columns* of each piece; checks that one run is all there is.

    Raises:
        InvalidInput: as :func:`read_records` does.
    """
    known: tuple[Names, Path] | None = None
    row = 0
    for file in files_of(path, partial=partial):
        try:
            for batch in _batches(file, columns):
                if not batch.num_rows:  # a worker may have had nothing to send
                    continue
                names = _names_of(batch, file)
                known = known or (names, file)
                if names != known[0]:
                    raise _two_runs(known, (names, file))
                yield names, {name: _column(batch, name, row) for name in columns}
                row += batch.num_rows
        except (OSError, pa.ArrowException, KeyError, ValueError) as error:
            raise InvalidInput(
                f"Cannot read records from {file}: {error}; expected a file that a load test wrote."
            ) from error


def files_of(path: Path, *, partial: bool) -> list[Path]:
    """The files with records that *path* means: itself, or those of the folder, one for each worker.

    With *partial*, a ``NAME.partial`` stands for its NAME.

    Raises:
        InvalidInput: there is none, or a run that did not end left a ``.partial`` and *partial* is not set.
    """
    if path.is_dir():
        found = sorted({_finished(each) for pattern in ("records", "records-*") for each in _matching(path, pattern)})
        if not found:
            raise InvalidInput(f"{path} holds no records: expected records.parquet or records-*.parquet in it.")
    else:
        found = [_finished(path)]
    unfinished = [each for file in found if (each := file.with_name(file.name + PARTIAL)).exists()]
    if unfinished and not partial:
        raise InvalidInput(
            f"{unfinished[0]} is of a run that did not end: expected finished records only; "
            "run it again, or ask for partial records."
        )
    return [each if (each := file.with_name(file.name + PARTIAL)) in unfinished else file for file in found]


def _matching(folder: Path, stem: str) -> list[Path]:
    return [*folder.glob(f"{stem}.parquet"), *folder.glob(f"{stem}.parquet{PARTIAL}")]


def _finished(path: Path) -> Path:
    return path.with_name(path.name.removesuffix(PARTIAL))


def _batches(file: Path, columns: Collection[str]) -> Iterator[pa.RecordBatch]:
    if file.name.endswith(PARTIAL):
        yield from stream_batches(file)
        return
    with pq.ParquetFile(file, buffer_size=1 << 20) as parquet:
        held = set(parquet.schema_arrow.names)
        wanted = [*NAMES, *(name for name in columns if name not in NEWER or name in held)]
        for name in wanted:
            if name not in held:
                raise ValueError(f"it has no column {name}")
        yield from parquet.iter_batches(CHUNK_ROWS, columns=wanted)


def stream_batches(file: Path) -> Iterator[pa.RecordBatch]:
    """The whole batches of an Arrow IPC stream; what follows the last of them is half a batch, and is left."""
    with pa.OSFile(str(file), "rb") as source:
        try:
            stream = pa.ipc.open_stream(source)
        except (OSError, pa.ArrowInvalid):
            if file.stat().st_size:
                raise
            return
        while True:
            try:
                batch = stream.read_next_batch()
            except (StopIteration, OSError, pa.ArrowInvalid):
                return
            yield batch


def _names_of(batch: pa.RecordBatch, file: Path) -> Names:
    found = []
    for name in NAMES:
        values = batch.column(name).unique().to_pylist()
        if len(values) != 1 or not isinstance(values[0], str):
            raise InvalidInput(f"{file} holds records of the {name}s {values[:3]}: expected one {name} per file.")
        found.append(values[0])
    return found[0], found[1], found[2]


def _two_runs(first: tuple[Names, Path], second: tuple[Names, Path]) -> InvalidInput:
    return InvalidInput(
        f"{first[1]} holds the run {'/'.join(first[0])} and {second[1].name} {'/'.join(second[0])}: "
        "expected the records of one run (run/model/variant) in one folder; move the others away."
    )


def _column(batch: pa.RecordBatch, name: str, first_row: int) -> Column:
    if name not in batch.schema.names:
        if name == "sequence":
            return np.arange(first_row, first_row + batch.num_rows, dtype=np.int64)
        return np.full(batch.num_rows, name == "rows", SCHEMA.field(name).type.to_pandas_dtype())
    column = batch.column(name)
    if column.null_count:
        raise ValueError(f"the column {name} has empty cells")
    if name == "status":
        return _codes(column)
    return column.cast(SCHEMA.field(name).type).to_numpy(zero_copy_only=False)


def _codes(column: pa.Array[Any]) -> npt.NDArray[np.uint8]:
    """Status names as indices into STATUSES; each file may number its names as it likes."""
    coded: Any = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
    names = coded.dictionary.to_pylist()
    for name in names:
        if name not in STATUSES:
            raise ValueError(f"the status {name!r} is none of {', '.join(STATUSES)}")
    table = np.array([STATUSES.index(name) for name in names], np.uint8)
    found: npt.NDArray[np.uint8] = table[coded.indices.to_numpy(zero_copy_only=False)]
    return found
