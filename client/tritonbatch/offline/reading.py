"""From files to rows: one function per kind, an iterator from any row on, with no more than a few rows in memory."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.offline.source import MARK_LINES, Source, SourceFile

IdKind = Literal["row", "int", "text"]
Id = int | str | None
READ_ROWS = 64
BLOCK_BYTES = 4 << 20
LARGEST_ID = 2**63


@dataclass(frozen=True, slots=True)
class Columns:
    """Which columns or keys of the input are tensors, and what the ids are ("row": there are none, the row counts)."""

    inputs: tuple[str, ...]
    ids: IdKind


@dataclass(frozen=True, slots=True)
class Row:
    """One item as it was read; with an *error* it could not be, and *values* are empty.

    *values* lacks the columns or keys that are not there; an *id* of None is one that could not be read.
    """

    number: int
    id: Id
    where: str
    values: dict[str, Any]
    error: str = ""


def read_rows(source: Source, columns: Columns, start: int = 0) -> Iterator[Row]:
    """The rows of *source* from number *start* on."""
    read = {"parquet": read_parquet, "jsonl": read_jsonl, "npy": read_npy}[source.kind]
    first = 0
    for file in source.files:
        if start < first + file.rows:
            yield from read(file, columns, max(start - first, 0), first)
        first += file.rows


def read_parquet(file: SourceFile, columns: Columns, start: int, first: int) -> Iterator[Row]:
    """The rows of a Parquet file from its row *start* on; *first* is the number of its row 0."""
    wanted = [*columns.inputs, *([] if columns.ids == "row" else ["id"])]
    # With a buffer the column chunks stream; without, a row group is loaded whole.
    with pq.ParquetFile(file.path, buffer_size=1 << 20, pre_buffer=False) as parquet:
        present = [name for name in wanted if name in parquet.schema_arrow.names]
        groups, row = _groups_from(parquet.metadata, start)
        for batch in parquet.iter_batches(batch_size=READ_ROWS, row_groups=groups, columns=present):
            for at in range(max(start - row, 0), batch.num_rows):
                yield _parquet_row(file, batch, at, row + at, first, columns)
            row += batch.num_rows


def _groups_from(metadata: pq.FileMetaData, start: int) -> tuple[list[int], int]:
    """The row groups that hold row *start* and those after it, and the first row of the first of them."""
    row = 0
    for group in range(metadata.num_row_groups):
        rows = metadata.row_group(group).num_rows
        if start < row + rows:
            return list(range(group, metadata.num_row_groups)), row
        row += rows
    return [], row


def _parquet_row(file: SourceFile, batch: pa.RecordBatch, at: int, row: int, first: int, columns: Columns) -> Row:
    where, number = f"{file.path.name}, row {row}", first + row
    found = None if columns.ids == "row" else batch.column("id")[at].as_py()
    item = _identified(number, where, {}, found, columns.ids)
    try:
        values = {name: _value(batch.column(name)[at]) for name in columns.inputs if name in batch.schema.names}
    except ValueError as error:
        return replace(item, error=item.error or str(error))
    return item if item.error else replace(item, values=values)


def _value(scalar: Any) -> Any:
    """A scalar as a Python value, a list as an array of as many dimensions as it is deep."""
    if not scalar.is_valid:
        return None
    if isinstance(scalar, pa.ExtensionScalar):
        return _value(scalar.value)
    if isinstance(scalar, (pa.ListScalar, pa.LargeListScalar, pa.FixedSizeListScalar)):
        return _array(scalar.values)
    return scalar.as_py()


def _array(values: Any) -> npt.NDArray[Any]:
    if values.null_count:
        raise ValueError("a list holds a null")
    if not isinstance(values, (pa.ListArray, pa.LargeListArray, pa.FixedSizeListArray)):
        return np.asarray(values.to_numpy(zero_copy_only=False))
    inner = values.flatten()
    lengths: set[Any] = set(values.value_lengths().to_pylist())
    if len(lengths) > 1:
        raise ValueError(f"its inner lists have different lengths ({sorted(lengths)})")
    array = _array(inner)
    return array.reshape(len(values), *(lengths or {0}), *array.shape[1:])


def read_jsonl(file: SourceFile, columns: Columns, start: int, first: int) -> Iterator[Row]:
    """The lines of a JSONL file from line *start* (from 0) on; *first* is the number of its line 0."""
    with file.path.open("rb") as lines:
        lines.seek(file.marks[start // MARK_LINES])
        for line, text in enumerate(islice(lines, start % MARK_LINES, None), start):
            if line >= file.rows:  # the file has grown since it was counted
                return
            yield _json_row(file, text, line, first, columns)


def _json_row(file: SourceFile, text: bytes, line: int, first: int, columns: Columns) -> Row:
    where, number = f"{file.path.name}, line {line + 1}", first + line
    found, error = _parsed(text)
    if error:
        return Row(number, number if columns.ids == "row" else None, where, {}, error)
    values = {name: found[name] for name in columns.inputs if name in found}
    return _identified(number, where, values, None if "id" in columns.inputs else found.get("id"), columns.ids)


def _parsed(text: bytes) -> tuple[dict[str, Any], str]:
    """The object of a line, or why there is none."""
    text = text.strip()
    if not text:
        return {}, "it is blank; expected one object a line"
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        return {}, f"it is not JSON ({error.msg} at character {error.pos + 1}); expected one object a line"
    except (ValueError, RecursionError) as error:
        return {}, f"it is not JSON ({error}); expected one object a line"
    if not isinstance(found, dict):
        return {}, f"it is {type(found).__name__}; expected one object a line, with the inputs"
    return found, ""


def _identified(number: int, where: str, values: dict[str, Any], found: Any, ids: IdKind) -> Row:
    if ids == "row" and found is None:
        return Row(number, number, where, values)
    if type(found) is str and ids == "text":
        return Row(number, found, where, values)
    if type(found) is int and ids == "int" and -LARGEST_ID <= found < LARGEST_ID:
        return Row(number, found, where, values)
    kind = {"int": "a 64-bit integer", "text": "text", "row": "none"}[ids]
    return Row(number, None, where, {}, f"its id is {found!r:.60}; expected {kind} as in the first items")


def read_npy(file: SourceFile, columns: Columns, start: int, first: int) -> Iterator[Row]:
    """The rows of an array from row *start* on; *first* is the number of its row 0."""
    (name,) = columns.inputs
    row = start
    while row < file.rows:
        # Mapped anew for each block: pages that were read count as ours for as long as the mapping lives.
        array = np.load(file.path, mmap_mode="r", allow_pickle=False)
        rows = max(1, BLOCK_BYTES // max(1, array.nbytes // len(array)))
        block = np.array(array[row : min(row + rows, file.rows)])
        del array
        if not len(block):  # the file has shrunk since it was counted
            return
        for at, value in enumerate(block, row):
            yield Row(first + at, first + at, f"{file.path.name}, row {at}", {name: value})
        row += len(block)
