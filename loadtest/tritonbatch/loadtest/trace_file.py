"""Recorded arrivals, to be replayed: read from CSV, Parquet or a plain list of seconds.

A table has one column of times, the first it has of ``arrival_ms``, ``arrival_s`` and ``timestamp`` (seconds, or ISO
8601, UTC where no zone is given), and optionally ``batch`` (rows) and ``priority``; other columns are passed over.
"""

from __future__ import annotations

import csv
import math
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.arrivals import MOST_ARRIVALS, NS_PER_S
from tritonbatch.loadtest.mixes import MOST_PRIORITY, MOST_ROWS, Arrivals

NS_OF: Mapping[str, int] = {"arrival_ms": 1_000_000, "arrival_s": NS_PER_S, "timestamp": NS_PER_S}
"""The columns that may hold the times, and the nanoseconds of their unit."""

EXPECTED = "expected a CSV or Parquet file with the column arrival_ms, or one number of seconds per line"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_S = 9e9
"""Of a time in a file: nanoseconds since 1970 are counted in 64 bits."""


@dataclass(slots=True)
class _Column:
    """The cells of one column as found, and what each is called in a message (``line 3``)."""

    name: str
    cells: Sequence[Any]
    lines: Sequence[int]
    file: Path
    place: str = "line"

    def mistake(self, index: int, expected: str) -> InvalidInput:
        where = f"{self.file}, {self.place} {self.lines[index]}"
        return InvalidInput(f"{where} has the {self.name} {str(self.cells[index])[:40]!r}: expected {expected}.")


def read_trace(path: Path) -> Arrivals:
    """Read the arrivals in *path*; the first becomes time 0.

    Raises:
        InvalidInput: the file cannot be read, is empty or foreign, or a line has no time, a negative one, an earlier
            one than the line before it, or a batch or priority that cannot be.
    """
    try:
        with path.open("rb") as file:
            parquet = file.read(4) == b"PAR1"
        columns = _parquet_columns(path) if parquet else _text_columns(path)
    except (OSError, UnicodeDecodeError, csv.Error, pa.ArrowException) as error:
        raise InvalidInput(f"Cannot read arrivals from {path}: {error}; {EXPECTED}.") from error
    times = next((columns[name] for name in NS_OF if name in columns), None)
    if times is None or not len(times.cells):
        raise InvalidInput(f"{path} holds no arrivals: {EXPECTED}.")
    at_ns = _ascending(times)
    rows = _whole(columns.get("batch"), len(at_ns), 1, MOST_ROWS).astype(np.uint32)
    return Arrivals(
        at_ns - at_ns[0], rows, _whole(columns.get("priority"), len(at_ns), 0, MOST_PRIORITY).astype(np.uint8)
    )


def _text_columns(path: Path) -> dict[str, _Column]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        return _table(path, file)


def _table(path: Path, file: TextIO) -> dict[str, _Column]:
    """The columns of interest; a first line that is a number makes the file a plain list of seconds."""
    reader = csv.reader(file, strict=True)
    rows = ((reader.line_num, [cell.strip() for cell in row]) for row in reader if row)
    first = next(rows, None)
    if first is None:
        return {}
    line, header = first
    if len(header) == 1 and _spells_number(header[0]):
        columns = _cells(path, rows, {"arrival_s": 0})
        columns["arrival_s"].cells = [header[0], *columns["arrival_s"].cells]
        columns["arrival_s"].lines = array("q", [line, *columns["arrival_s"].lines])
        return columns
    _check_names(path, header)
    return _cells(path, rows, {name: header.index(name) for name in (*NS_OF, "batch", "priority") if name in header})


def _cells(path: Path, rows: Iterator[tuple[int, list[str]]], places: Mapping[str, int]) -> dict[str, _Column]:
    cells: dict[str, list[str]] = {name: [] for name in places}
    lines = array("q")
    for line, row in rows:
        for name, place in places.items():
            cells[name].append(row[place] if place < len(row) else "")
        lines.append(line)
        _limit(path, len(lines))
    return {name: _Column(name, found, lines, path) for name, found in cells.items()}


def _parquet_columns(path: Path) -> dict[str, _Column]:
    with pq.ParquetFile(path) as file:
        _limit(path, file.metadata.num_rows)
        _check_names(path, file.schema_arrow.names)
        wanted = [name for name in (*NS_OF, "batch", "priority") if name in file.schema_arrow.names]
        table = file.read(columns=wanted)
    lines = range(1, table.num_rows + 1)
    return {name: _Column(name, _values(table.column(name)), lines, path, "row") for name in wanted}


def _values(column: pa.ChunkedArray[Any]) -> Sequence[Any]:
    """Cells as Python values; moments as nanoseconds in whole numbers, so that none of their digits is lost."""
    if pa.types.is_timestamp(column.type):
        return [
            None if ns is None else _Moment(ns) for ns in column.cast(pa.timestamp("ns")).cast(pa.int64()).to_pylist()
        ]
    return column.to_pylist()


class _Moment(int):
    """Nanoseconds since 1970."""


def _check_names(path: Path, names: Sequence[str]) -> None:
    if not any(name in NS_OF for name in names):
        found = ", ".join(names)[:80]
        raise InvalidInput(f"{path} has the columns {found!r}: expected one of {', '.join(NS_OF)} with the times.")


def _limit(path: Path, rows: int) -> None:
    if rows > MOST_ARRIVALS:
        raise InvalidInput(f"{path} holds more than {MOST_ARRIVALS:,} arrivals: expected fewer; take a part of it.")


def _ascending(times: _Column) -> npt.NDArray[np.int64]:
    """Nanoseconds, checked one against the other."""
    at_ns = _all_nanoseconds(times)
    if (wrong := np.flatnonzero(at_ns < 0)).size:
        raise times.mistake(int(wrong[0]), "a finite number that is not negative" + _or_moment(times.name))
    if (back := np.flatnonzero(np.diff(at_ns) < 0)).size:
        raise times.mistake(int(back[0]) + 1, "no earlier time than the one before it; sort the file")
    return at_ns


def _all_nanoseconds(times: _Column) -> npt.NDArray[np.int64]:
    """Nanoseconds of every cell, -1 where it is no time."""
    unit_ns = NS_OF[times.name]
    if (numbers := _numbers(times.cells)) is not None:
        good = (numbers >= 0) & (numbers <= MOST_S * NS_PER_S / unit_ns)
        return np.rint(np.where(good, numbers * unit_ns, -1)).astype(np.int64)
    is_moment = times.name == "timestamp"
    found = [_nanoseconds(cell, unit_ns, is_moment=is_moment) for cell in times.cells]
    return np.array([-1 if ns is None else ns for ns in found], np.int64)


def _numbers(cells: Sequence[Any]) -> npt.NDArray[np.float64] | None:
    """All *cells* as numbers, many times faster than one by one; None when one of them is none."""
    if isinstance(cells[0], _Moment):
        return None
    try:
        found = np.array(cells, np.float64)
    except (TypeError, ValueError):
        return None
    return found if found.ndim == 1 else None


def _or_moment(name: str) -> str:
    return ", or a moment such as 2024-05-01T12:00:00.5Z" if name == "timestamp" else ""


def _nanoseconds(cell: Any, unit_ns: int, *, is_moment: bool) -> int | None:
    """None when *cell* is no time; ISO 8601 only where *is_moment*."""
    if isinstance(cell, _Moment):
        return int(cell) if cell >= 0 else None
    number = _number(cell)
    if math.isnan(number):
        return _iso_ns(cell) if is_moment and isinstance(cell, str) else None
    return round(number * unit_ns) if 0 <= number * unit_ns <= MOST_S * NS_PER_S else None


def _iso_ns(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return (moment - EPOCH) // timedelta(microseconds=1) * 1000 if moment >= EPOCH else None


def _whole(column: _Column | None, count: int, least: int, most: int) -> npt.NDArray[np.int64]:
    """Whole numbers from *least* to *most*; without the column, *least* for each of *count*."""
    if column is None:
        return np.full(count, least, np.int64)
    numbers = _numbers(column.cells)
    if numbers is None:
        numbers = np.array([_number(cell) for cell in column.cells])
    wrong = np.flatnonzero(~((numbers >= least) & (numbers <= most) & (numbers == np.floor(numbers))))
    if wrong.size:
        raise column.mistake(int(wrong[0]), f"a whole number from {least} to {most}")
    return numbers.astype(np.int64)


def _spells_number(text: str) -> bool:
    """Also ``nan``, which is a mistake in a list of seconds rather than the name of a column."""
    return text.lower() == "nan" or not math.isnan(_number(text))


def _number(cell: Any) -> float:
    """NaN for what is none."""
    try:
        return float(cell)
    except (TypeError, ValueError):
        return math.nan
