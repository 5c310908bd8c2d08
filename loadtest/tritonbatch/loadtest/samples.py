"""The inputs that a load generator sends: real rows from a file, or made up from what the model declares."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonbatch.client import Client
from tritonbatch.client.tensors import random_inputs
from tritonbatch.errors import InvalidInput

Batch = dict[str, npt.NDArray[Any]]

POOL = 64
"""Distinct rows that are prepared before a run and sent in turn."""


def sample_batches(client: Client, model: str, rows: int, samples: Path | None) -> list[Batch]:
    """Batches of *rows* rows to send in turn: from the .npz file *samples*, or made up from the model's metadata.

    Raises:
        InvalidInput: the file cannot be read, is empty, or its arrays differ in length.
    """
    if samples is None:
        rng, metadata = np.random.default_rng(0), client.metadata(model)
        return [random_inputs(metadata, rows, rng) for _ in range(max(1, POOL // rows))]
    arrays = load_samples(samples)
    length = len(next(iter(arrays.values())))
    take = [np.arange(start * rows, (start + 1) * rows) % length for start in range(max(1, min(POOL, length) // rows))]
    return [{name: array[index] for name, array in arrays.items()} for index in take]


def load_samples(samples: Path) -> Batch:
    """Read rows for every input from an .npz file.

    Raises:
        InvalidInput: the file cannot be read, is empty, or its arrays differ in length.
    """
    try:
        with np.load(samples, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, AttributeError) as error:
        raise InvalidInput(f"Cannot read the samples {samples}: {error}; expected an .npz file of arrays.") from error
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    if not arrays or len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InvalidInput(f"The samples {samples} hold {lengths}: expected the same number of rows for every input.")
    # One number per row is dims [1] on the wire, also for a model whose tensor has no axis but the batch.
    return {name: array[:, None] if array.ndim == 1 else array for name, array in arrays.items()}
