"""What a job reads: the files of one kind behind a path, how many rows each has, and how to tell when they change."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.errors import InvalidInput

Kind = Literal["parquet", "jsonl", "npy"]
KINDS: dict[str, Kind] = {".parquet": "parquet", ".jsonl": "jsonl", ".npy": "npy"}
EXPECTED = "expected .parquet, .jsonl or .npy"
MARK_LINES = 1024
"""A JSONL file is remembered at every so many lines, so that reading can start near any of them."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file with its rows; *marks* are the byte offsets of every MARK_LINES-th line of a JSONL file."""

    path: Path
    rows: int
    marks: tuple[int, ...]
    fingerprint: tuple[str, int, int]
    """Absolute path, size in bytes, time of the last change in ns."""


@dataclass(frozen=True, slots=True)
class Source:
    """The files behind *path*, in the order of their names; rows are numbered from 0 through all of them."""

    path: Path
    kind: Kind
    files: tuple[SourceFile, ...]

    @property
    def rows(self) -> int:
        """Rows of all files together."""
        return sum(file.rows for file in self.files)


def open_source(path: Path) -> Source:
    """Find the files of *path*, a file or a folder of part files, and count their rows without loading them.

    Raises:
        InvalidInput: it does not exist, is of no known kind, mixes kinds, cannot be read, or has no row.
    """
    if not path.exists():
        raise InvalidInput(f"No input at {path}: {EXPECTED}, or a folder of them; check the path.")
    if not path.is_dir() and not path.is_file():
        raise InvalidInput(f"The input {path} is a pipe or a device: expected a file, which can be read again.")
    paths = _part_files(path) if path.is_dir() else [path]
    kind = _kind_of_all(path, paths)
    source = Source(path, kind, tuple(_opened(each, kind) for each in paths))
    if not source.rows:
        raise InvalidInput(f"The input {path} has no rows: expected one or more; check what wrote it.")
    return source


def kind_of(path: Path, what: str, else_do: str = "") -> Kind:
    """The kind that the suffix of *path* names; *what* is its part in the job, *else_do* advice for when it has none.

    Raises:
        InvalidInput: it is none of the known ones.
    """
    kind = KINDS.get(path.suffix.lower())
    if kind is None:
        ending = path.suffix or "no suffix"
        raise InvalidInput(f"The {what} {path} ends in {ending}: {EXPECTED}; convert or rename it{else_do}.")
    return kind


def _kind_of_all(path: Path, paths: Sequence[Path]) -> Kind:
    kinds = {kind_of(each, "input", ", or move it out of the folder" if each != path else "") for each in paths}
    if not kinds:
        raise InvalidInput(
            f"The folder {path} holds no file: expected part files of one kind; subfolders are not read, so give one."
        )
    if len(kinds) > 1:
        held = " and ".join(sorted(kinds))
        raise InvalidInput(f"The folder {path} holds {held}: expected part files of one kind; give a folder for each.")
    return kinds.pop()


def _part_files(folder: Path) -> list[Path]:
    # Writers of part files leave marks such as _SUCCESS and .crc beside them.
    return sorted(each for each in folder.iterdir() if each.is_file() and not each.name.startswith((".", "_")))


def _opened(path: Path, kind: Kind) -> SourceFile:
    count: dict[Kind, Callable[[Path], tuple[int, tuple[int, ...]]]] = {
        "parquet": _count_parquet,
        "jsonl": _count_jsonl,
        "npy": _count_npy,
    }
    status = path.stat()  # before counting, so that a file that grows meanwhile is noticed the next time
    try:
        rows, marks = count[kind](path)
    except (ValueError, EOFError, pa.ArrowException) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInput(f"{path} cannot be read as {kind} ({reason}): check what wrote it.") from error
    return SourceFile(path, rows, marks, (str(path.resolve()), status.st_size, status.st_mtime_ns))


def _count_parquet(path: Path) -> tuple[int, tuple[int, ...]]:
    return pq.read_metadata(path).num_rows, ()


def _count_npy(path: Path) -> tuple[int, tuple[int, ...]]:
    shape = np.load(path, mmap_mode="r", allow_pickle=False).shape
    if not shape:
        raise ValueError("it is a single number, not an array with rows")
    return shape[0], ()


def _count_jsonl(path: Path) -> tuple[int, tuple[int, ...]]:
    marks, lines, offset = [], 0, 0
    with path.open("rb") as file:
        for line in file:
            if lines % MARK_LINES == 0:
                marks.append(offset)
            lines += 1
            offset += len(line)
    return lines, tuple(marks)
