"""Check arrays against what a model declares, before anything is sent. Pure: metadata in, verdict out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc.service_pb2 import ModelMetadataResponse
from tritonclient.utils import np_to_triton_dtype

from tritonbatch.client.errors import InvalidRequest

Arrays = Mapping[str, npt.NDArray[Any]]


def check_inputs(metadata: ModelMetadataResponse, max_batch_size: int, inputs: Arrays) -> int:
    """Check names, types, shapes and batch of *inputs*; return the number of rows (1 for a model without batching).

    Raises:
        InvalidRequest: names the model, the tensor, what it got and what it expected.
    """
    model = metadata.name
    declared = {tensor.name: tensor for tensor in metadata.inputs}
    if set(inputs) != set(declared):
        got, expected = ", ".join(sorted(inputs)) or "none", ", ".join(sorted(declared))
        raise InvalidRequest(f"Model {model} got the inputs {got}; expected {expected}.")
    for name, array in inputs.items():
        _check_tensor(model, declared[name], array)
    if max_batch_size == 0:
        return 1
    return _check_rows(model, max_batch_size, {name: len(array) for name, array in inputs.items()})


def _check_tensor(model: str, tensor: ModelMetadataResponse.TensorMetadata, array: npt.NDArray[Any]) -> None:
    got = np_to_triton_dtype(array.dtype)
    if got != tensor.datatype:
        found = f"{array.dtype} ({got or 'no Triton type'})"
        raise InvalidRequest(f"Model {model}, input {tensor.name}: got {found}; expected {tensor.datatype}.")
    shape = tuple(tensor.shape)
    fits = len(shape) == array.ndim and all(want in (-1, have) for want, have in zip(shape, array.shape, strict=True))
    if not fits:
        raise InvalidRequest(
            f"Model {model}, input {tensor.name}: got shape {array.shape}; expected {shape}, -1 meaning any size."
        )


def _check_rows(model: str, max_batch_size: int, rows: Mapping[str, int]) -> int:
    counts = set(rows.values())
    if len(counts) > 1:
        raise InvalidRequest(f"Model {model}: the inputs have different numbers of rows ({dict(rows)}); expected one.")
    (count,) = counts
    if not 1 <= count <= max_batch_size:
        raise InvalidRequest(f"Model {model}: got a batch of {count}; expected 1 to {max_batch_size} (max_batch_size).")
    return int(count)


def random_inputs(metadata: ModelMetadataResponse, rows: int, rng: np.random.Generator) -> dict[str, npt.NDArray[Any]]:
    """*rows* rows for every input from its declared type and shape: normal floats, integers 0 and 1, free sizes 1.

    It knows nothing of what the numbers mean: for a model with a vocabulary or free shapes, give real samples.

    Raises:
        InvalidRequest: an input is text, for which there is no sensible guess.
    """
    return {tensor.name: _random(metadata.name, tensor, rows, rng) for tensor in metadata.inputs}


def _random(
    model: str, tensor: ModelMetadataResponse.TensorMetadata, rows: int, rng: np.random.Generator
) -> npt.NDArray[Any]:
    shape = (rows, *(max(size, 1) for size in tensor.shape[1:]))
    kind = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}.get(tensor.datatype)
    if tensor.datatype.startswith(("INT", "UINT")):
        return rng.integers(0, 2, shape).astype(np.dtype(tensor.datatype.lower()))
    if kind is None:
        raise InvalidRequest(
            f"Model {model}, input {tensor.name}: cannot make up {tensor.datatype} values; give samples in an .npz."
        )
    return rng.standard_normal(shape).astype(kind) if kind is not np.bool_ else rng.random(shape) < 0.5
