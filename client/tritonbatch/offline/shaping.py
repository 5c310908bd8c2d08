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
WHOLE = 2.0**53
"""Up to here float64 holds every whole number, so that one that was read as a float is the one that was written."""

Item = dict[str, Array]
"""The inputs of one item, each with a batch axis of 1."""


def shaped(contract: Contract, values: Mapping[str, Any]) -> Item:
    """The tensors of one item; a missing value is an input that is not sent.

    The file's numbers are literals: they take the declared type where it holds them (floats are rounded to it, 1.0 is
    the integer 1), and a flat list, or a single number, takes the declared dims where the count is right.

    Raises:
        InvalidRequest: names the model, the input, what it got and what it expected.
    """
    _check_null(contract, values)
    item = {
        name: _literal(contract.model, contract.inputs[name], value)
        for name, value in values.items()
        if value is not None
    }
    for name, array in item.items():
        _check_dims(contract.model, contract.inputs[name], array)
    return checked(contract, item, add_batch_axis=True)[1]


def _check_null(contract: Contract, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        if value is None and not contract.inputs[name].optional:
            raise InvalidRequest(f"Model {contract.model}, input {name}: it is null; expected a value.")


def _check_dims(model: str, tensor: Tensor, array: Array) -> None:
    # `checked` would speak of a whole batch, and of its own arguments.
    dims = tensor.shape[1:]
    if array.ndim == len(dims) and all(want in (-1, have) for want, have in zip(dims, array.shape, strict=True)):
        return
    got = f"dims {list(array.shape)}" if array.ndim else "a single value"
    free = ", -1 meaning any size" if -1 in dims else ""
    raise InvalidRequest(f"Model {model}, input {tensor.name}: got {got}; expected dims {list(dims)}{free}.")


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
    if tensor.datatype.startswith(("INT", "UINT")) and array.dtype.kind == "f":
        array = _whole(where, tensor.datatype, array)
    if array.ndim <= 1 and -1 not in dims and array.size == math.prod(dims):
        return array.reshape(dims)
    return array


def _whole(where: str, datatype: str, array: Array) -> Array:
    """Numbers that were written, or stored, as floats, as the integers that they are."""
    limits = np.iinfo(datatype.lower())
    fits = (array == np.round(array)) & (np.abs(array) <= WHOLE) & (array >= limits.min) & (array <= limits.max)
    if not fits.all():
        raise InvalidRequest(f"{where}: got {array[~fits][0]:g}; expected whole numbers that {datatype} holds.")
    return array.astype(limits.dtype)


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
