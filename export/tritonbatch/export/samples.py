"""Input rows: the file of them that a load generator replays, and made-up ones for a graph without a model."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np

from tritonbatch.models.data_types import numpy_type
from tritonbatch.models.model import Arrays, TensorSpec

SAMPLES_FILE = "samples.npz"
SAMPLE_ROWS = 64
_FREE_SIZES = (32, 64)


def write_samples(rows: Arrays, path: Path) -> None:
    """Write *rows* as an .npz file, one array per input under its exact name; text is Unicode, not pickled."""
    # np.savez takes names as keyword arguments, so an input called "file" would break it.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in rows.items():
            plain = np.asarray(array, dtype=np.str_) if array.dtype.kind == "O" else array
            # The default date makes equal samples equal files.
            with archive.open(zipfile.ZipInfo(f"{name}.npy"), "w") as member:
                np.lib.format.write_array(member, np.ascontiguousarray(plain), allow_pickle=False)


def made_up_rows(inputs: tuple[TensorSpec, ...], batch: int, rng: np.random.Generator) -> Arrays:
    """*batch* rows that any graph should accept: floats in 0 to 1, integers 0 or 1, free sizes of 32 or 64.

    Integers are often indices or masks, where anything above 1 may be out of range. Free sizes are the same in every
    input, and differ between batches of 1 and 2, so that a verification meets both.
    """
    return {spec.name: _made_up(spec, batch, rng) for spec in inputs}


def _made_up(spec: TensorSpec, batch: int, rng: np.random.Generator) -> np.ndarray:
    free = _FREE_SIZES[batch.bit_length() % 2]
    shape = (batch, *(free if size == -1 else size for size in spec.dims))
    if spec.data_type == "TYPE_STRING":
        return rng.choice(np.array(["one", "two", "three"], dtype=object), shape)
    if spec.data_type in ("TYPE_FP16", "TYPE_FP32", "TYPE_FP64"):
        return rng.random(shape).astype(numpy_type(spec.data_type))
    return rng.integers(2, size=shape).astype(numpy_type(spec.data_type))
