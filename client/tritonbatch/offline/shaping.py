"""From the values of a file to the tensors of a model. Pure: contract and values in, arrays or an error out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tritonbatch.client.contract import Contract, Tensor
from tritonbatch.client.errors import InvalidRequest
from tritonbatch.client.tensors import Array, checked
from tritonbatch.offline.reading import Row

FLOATS = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}

Item = dict[str, Array]
"""The inputs of one item, each with a batch axis of 1."""


def shaped(contract: Contract, values: Mapping[str, Any]) -> Item:
    """The tensors of one item; a missing value is an input that is not sent.

    The file's numbers are literals: they take the declared type where it holds them (floats are rounded to it), and a
    flat list, or a single number, takes the declared dims where the count is right.

    Raises:
        InvalidRequest: names the model, the input, what it got and what it expected.
    """
    item = {
        name: _literal(contract.model, contract.inputs[name], value)
        for name, value in values.items()
        if value is not None
    }
    return checked(contract, item, add_batch_axis=True)[1]


def _literal(model: str, tensor: Tensor, value: Any) -> Array:
    where, dims = f"Model {model}, input {tensor.name}", tensor.shape[1:]
    try:
        array = np.asarray(value, dtype=object if tensor.datatype == "BYTES" else None)
    except ValueError as error:
        raise InvalidRequest(f"{where}: the lists have different lengths; expected dims {list(dims)}.") from error
    wanted = FLOATS.get(tensor.datatype)
    if wanted is not None and array.dtype.kind == "f" and array.dtype != wanted:
        with np.errstate(over="ignore"):
            rounded = array.astype(wanted)
        if np.any(np.isinf(rounded) & np.isfinite(array)):
            raise InvalidRequest(f"{where}: got {np.abs(array).max():g}; expected what {tensor.datatype} holds.")
        array = rounded
    if array.ndim <= 1 and -1 not in dims and array.size == math.prod(dims):
        return array.reshape(dims)
    return array


def signature(item: Item) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """What items must have in common to be in one batch."""
    return tuple((name, array.shape) for name, array in sorted(item.items()))


def stacked(items: Sequence[Item], batch: int) -> Item:
    """One batch of exactly *batch* rows: the items, then the last one again until it is full."""
    padded = [*items, *([items[-1]] * (batch - len(items)))]
    return {name: np.concatenate([item[name] for item in padded]) for name in items[0]}


def fitted(row: Row, contract: Contract) -> Item | str:
    """The tensors of *row*, or the sentence that says why there are none."""
    if row.error:
        return f"{row.error}."
    try:
        return shaped(contract, row.values)
    except InvalidRequest as error:
        return str(error)
