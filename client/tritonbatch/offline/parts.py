"""The work folder beside the output: fixed ranges of rows, each a file that is there whole or not at all.

    OUTPUT.parts/manifest.json           which job this is; another one is refused
    OUTPUT.parts/part-000003.parquet     the results of its range of rows, in order
    OUTPUT.parts/part-000003.errors.jsonl   the items of the range that failed
    OUTPUT.parts/part-000003.json        written last: the part is finished, with its counts and size

Since a part is the results of a fixed range, and a finished one is never computed again, a job that is stopped and
started any number of times has every item exactly once.
"""

from __future__ import annotations

import fcntl
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np
from tritonclient.utils import triton_to_np_dtype

from tritonbatch.client.contract import Tensor
from tritonbatch.errors import InvalidInput
from tritonbatch.whole_file import whole_file

PART_BATCHES = 64
PART_BYTES = 64 << 20
ORPHANS_S = 30.0
"""How long the workers of a run that was killed may take to notice."""


@dataclass(frozen=True, slots=True)
class Part:
    """The rows from *start* to before *stop*."""

    number: int
    start: int
    stop: int

    @property
    def rows(self) -> int:
        """How many rows it has."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a finished part: its rows, those of them that failed, the size of its results."""

    rows: int
    errors: int
    bytes: int


def batches_per_part(batch: int, outputs: Sequence[Tensor]) -> int:
    """PART_BATCHES, or fewer where the declared outputs (a free size counted as 1) would be over PART_BYTES."""
    row_bytes: int = sum(
        np.dtype(triton_to_np_dtype(output.datatype)).itemsize * math.prod(max(1, size) for size in output.shape[1:])
        for output in outputs
    )
    return max(1, min(PART_BATCHES, PART_BYTES // max(1, row_bytes * batch)))


def split(rows: int, part_rows: int) -> tuple[Part, ...]:
    """The parts of *rows* rows, all of *part_rows* but the last."""
    starts = range(0, rows, part_rows)
    return tuple(Part(number, start, min(start + part_rows, rows)) for number, start in enumerate(starts))


def work_folder(output: Path) -> Path:
    """Where the parts of *output* are while the job is not finished."""
    return output.with_name(f"{output.name}.parts")


def part_file(output: Path, part: Part, suffix: str) -> Path:
    """The file of *part* that ends in *suffix*."""
    return work_folder(output) / f"part-{part.number:06}{suffix}"


def finished(output: Path, part: Part) -> Entry | None:
    """The entry of *part*, or None when it is not finished."""
    try:
        entry = Entry(**json.loads(part_file(output, part, ".json").read_text(encoding="utf-8")))
        size = part_file(output, part, output.suffix).stat().st_size
    except (OSError, ValueError, TypeError):
        return None
    return entry if size == entry.bytes and entry.rows == part.rows else None


def finish(output: Path, part: Part, errors: int) -> Entry:
    """Write down that *part*, whose files are in place, is finished."""
    entry = Entry(part.rows, errors, part_file(output, part, output.suffix).stat().st_size)
    with whole_file(part_file(output, part, ".json")) as temporary:
        temporary.write_text(json.dumps(asdict(entry)), encoding="utf-8")
    return entry


def claim(output: Path, manifest: dict[str, Any]) -> None:
    """Make the work folder with its *manifest*, or check that the one that is there belongs to the same job.

    Raises:
        InvalidInput: it belongs to another job; the message says what differs.
    """
    folder, said = work_folder(output), json.loads(json.dumps(manifest))
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "manifest.json"
    if not any(folder.glob("part-*[0-9].json")):  # nothing has come of whatever was begun here
        with whole_file(path) as temporary:
            temporary.write_text(json.dumps(said, indent=1), encoding="utf-8")
        return
    there = _read_manifest(path)
    differing = [key for key in said if there.get(key) != said[key]]
    if differing:
        details = "; ".join(
            "the input has changed" if key == "files" else f"{key} {there.get(key)}, not {said[key]}"
            for key in differing
        )
        raise InvalidInput(
            f"{folder} holds parts of another job ({details}): finish that one with its own arguments, or remove the "
            "folder to start anew."
        )


def _read_manifest(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInput(f"{path} is not a manifest ({error}): remove the folder to start anew.") from error


@contextmanager
def alone_at_work(output: Path) -> Iterator[None]:
    """Hold the work folder against a second run with the same output.

    Raises:
        InvalidInput: another process is at it, or the workers of one that was killed do not end.
    """
    folder = work_folder(output)
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "lock").open("a") as lock, (folder / "workers").open("a") as workers:
        if not _locked(lock, wait_s=0):
            raise InvalidInput(f"Another run is writing to {folder}: wait for it, or name another output.")
        if not _locked(workers, wait_s=ORPHANS_S):
            raise InvalidInput(f"Workers of a killed run are still writing to {folder}: end them, or wait for them.")
        fcntl.flock(workers, fcntl.LOCK_UN)
        yield


def take_part(output: Path) -> TextIO:
    """Hold the work folder as a worker of the run that is at it, until the result is closed or the process ends."""
    workers = (work_folder(output) / "workers").open("a")
    fcntl.flock(workers, fcntl.LOCK_SH)
    return workers


def _locked(file: TextIO, wait_s: float) -> bool:
    deadline = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.1)
        else:
            return True
