"""The inputs that a load generator sends: rows from a file or a function, or made up from what the model declares."""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonbatch.client import Client, InvalidRequest
from tritonbatch.client.contract import Contract
from tritonbatch.client.tensors import checked, random_inputs
from tritonbatch.errors import InvalidInput

Batch = dict[str, npt.NDArray[Any]]
Make = Callable[[np.random.Generator, int], Mapping[str, npt.ArrayLike]]
"""``make(rng, rows)`` makes inputs of that many rows."""
Samples = Path | Make | None

POOL = 64
"""Distinct rows that are prepared before a run and sent in turn."""


def sample_batches(client: Client, model: str, rows: int, samples: Samples) -> list[Mapping[str, Any]]:
    """Batches of *rows* rows to send in turn: from an .npz or .jsonl file, a function, or the model's metadata.

    Raises:
        InvalidInput: the file cannot be read, is empty, its arrays differ in length, or a line does not fit the model.
    """
    if samples is None:
        rng, metadata = np.random.default_rng(0), client.metadata(model)
        return [random_inputs(metadata, rows, rng) for _ in range(max(1, POOL // rows))]
    if not isinstance(samples, Path):
        rng = np.random.default_rng(0)
        return [samples(rng, rows) for _ in range(max(1, POOL // rows))]
    if samples.suffix == ".jsonl":
        known = client.contract(model)
        ready = [_checked_line(known, samples, number, item) for number, item in load_items(samples).items()]
        return _batched(ready[:POOL], rows)
    arrays = load_samples(samples)
    length = len(next(iter(arrays.values())))
    take = [np.arange(start * rows, (start + 1) * rows) % length for start in range(max(1, min(POOL, length) // rows))]
    return [{name: array[index] for name, array in arrays.items()} for index in take]


def _checked_line(contract: Contract, samples: Path, number: int, item: dict[str, Any]) -> Batch:
    try:
        return checked(contract, item, add_batch_axis=True)[1]
    except InvalidRequest as error:
        raise InvalidInput(f"{samples}, line {number}: {error}") from error


def load_items(samples: Path) -> dict[int, dict[str, Any]]:
    """Read single items, whose shapes may differ, from a .jsonl file: an object per line with a key per input.

    The keys of the result are the numbers of the lines, from 1.

    Raises:
        InvalidInput: the file cannot be read, is empty, or a line is no JSON object.
    """
    items: dict[int, dict[str, Any]] = {}
    try:
        # JSON may hold the other characters at which splitlines() would split.
        for number, line in enumerate(samples.read_text(encoding="utf-8").split("\n"), start=1):
            if line.strip():
                items[number] = json.loads(line)
                if not isinstance(items[number], dict):
                    raise InvalidInput(f"{samples}, line {number}: expected a JSON object with a key for every input.")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"Cannot read the samples {samples}: {error}; expected JSON lines.") from error
    except json.JSONDecodeError as error:
        raise InvalidInput(
            f"{samples}, line {number}: {error.msg} at column {error.colno}; expected a JSON object per line."
        ) from error
    if not items:
        raise InvalidInput(f"The samples {samples} are empty: expected a JSON object per line.")
    return items


def _batched(items: Iterable[Batch], rows: int) -> list[Mapping[str, Any]]:
    """Batches of *rows* items of one shape each; a shape with too few repeats them."""

    def shapes(item: Batch) -> str:
        return str([(name, array.shape) for name, array in sorted(item.items())])

    batches: list[Mapping[str, Any]] = []
    for _, group in groupby(sorted(items, key=shapes), key=shapes):
        alike = list(group)
        for first in range(0, max(1, len(alike) // rows) * rows, rows):
            chosen = [alike[(first + offset) % len(alike)] for offset in range(rows)]
            batches.append({name: np.concatenate([each[name] for each in chosen]) for name in chosen[0]})
    return batches


def load_samples(samples: Path) -> Batch:
    """Read rows for every input from an .npz file.

    Raises:
        InvalidInput: the file cannot be read, is empty, or its arrays differ in length.
    """
    try:
        with np.load(samples, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        raise InvalidInput(f"Cannot read the samples {samples}: {error}; expected an .npz file of arrays.") from error
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not arrays or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InvalidInput(f"The samples {samples} hold {lengths}: expected the same number of rows for every input.")
    # One number per row is dims [1] on the wire, also for a model whose tensor has no axis but the batch.
    return {name: array[:, None] if array.ndim == 1 else array for name, array in arrays.items()}
