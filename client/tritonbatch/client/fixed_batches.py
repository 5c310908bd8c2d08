"""Rows and items as batches of one fixed size, the last one padded, and how long they will take. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonbatch.client.contract import Contract
from tritonbatch.client.errors import InvalidRequest
from tritonbatch.client.rows import joined, kind_of
from tritonbatch.client.tensors import Array, Inputs, checked, checked_item


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run will do: ⌈rows/batch_size⌉ *batches*, the last with *padding* rows too many, of *batch_ms* each."""

    rows: int
    batch_size: int
    batches: int
    padding: int
    batch_ms: float
    total_s: float

    def __str__(self) -> str:
        return (
            f"{self.rows} rows in {self.batches} batches of {self.batch_size} ({self.padding} rows of padding), "
            f"{self.batch_ms:.2f} ms each, {self.total_s:.2f} s in all"
        )


@dataclass(frozen=True, slots=True)
class Batch:
    """A full batch of inputs: *rows* real ones, the items from number *first* on, and then *padding* more."""

    first: int
    rows: int
    padding: int
    inputs: dict[str, Array]


def planned(rows: int, batch_size: int, batch_ms: float) -> Plan:
    """The plan for *rows* rows when a batch takes *batch_ms*."""
    batches = -(-rows // batch_size)
    return Plan(
        rows=rows,
        batch_size=batch_size,
        batches=batches,
        padding=batches * batch_size - rows,
        batch_ms=batch_ms,
        total_s=batches * batch_ms / 1000,
    )


def batches_of(arrays: Mapping[str, Array], rows: int, batch_size: int) -> Iterator[Batch]:
    """Cut *arrays* of *rows* rows into batches of exactly *batch_size*; the last row is repeated to fill the last."""
    for first in range(0, rows, batch_size):
        stop = min(first + batch_size, rows)
        yield padded(first, {name: array[first:stop] for name, array in arrays.items()}, batch_size)


def padded(first: int, arrays: dict[str, Array], batch_size: int) -> Batch:
    """*arrays* of 1 to *batch_size* rows as a full batch."""
    rows = len(next(iter(arrays.values())))
    padding = batch_size - rows
    if padding:
        arrays = {name: np.concatenate([array, array[-1:].repeat(padding, 0)]) for name, array in arrays.items()}
    return Batch(first, rows, padding, arrays)


def packed(known: Contract, items: Iterable[Mapping[str, Any]], batch_size: int) -> Iterator[Batch]:
    """Put single *items* into batches of exactly *batch_size*, holding no more than one batch.

    Raises:
        InvalidRequest: an item does not fit the model, or has other shapes than those before it in its batch.
    """
    waiting: list[dict[str, Array]] = []
    first = 0
    for number, item in enumerate(items):
        arrays = checked_item(known, item, number)
        if waiting and kind_of(arrays) != kind_of(waiting[0]):
            raise InvalidRequest(
                f"Item {number}: Model {known.model}: got {_shapes(arrays)}; expected {_shapes(waiting[0])}, as the "
                "item before: bring items of one shape, or pad them."
            )
        waiting.append(arrays)
        if len(waiting) == batch_size:
            batch, waiting, first = padded(first, joined(waiting), batch_size), [], number + 1
            yield batch
    if waiting:
        yield padded(first, joined(waiting), batch_size)


def checked_rows(known: Contract, inputs: Inputs) -> tuple[int, dict[str, Array]]:
    """Check *inputs* with any number of rows against the model, before the first batch is sent.

    Raises:
        InvalidRequest: they do not fit the model, have no rows, or not the same number of them.
    """
    if any(_empty(value) for value in inputs.values()):
        raise InvalidRequest(f"Model {known.model}: got no rows; expected 1 or more for every input.")
    return checked(dataclasses.replace(known, max_batch_size=np.iinfo(np.int64).max), inputs)


def repeated(arrays: Mapping[str, Array], rows: int, batch_size: int) -> dict[str, Array]:
    """The first *batch_size* of *rows* rows, from the start again where they are fewer."""
    return {name: array[np.arange(batch_size) % rows] for name, array in arrays.items()}


def _empty(value: npt.ArrayLike) -> bool:
    return value.shape[:1] == (0,) if isinstance(value, np.ndarray) else isinstance(value, (list, tuple)) and not value


def _shapes(arrays: Mapping[str, Array]) -> str:
    return ", ".join(f"{name} {array.dtype}{list(array.shape[1:])}" for name, array in arrays.items())
