"""More rows than one request may hold: split, sent side by side, put together in order. Over the shared pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Any

import numpy as np

from tritonbatch.client.contract import Contract
from tritonbatch.client.core import Core
from tritonbatch.client.errors import InvalidRequest
from tritonbatch.client.options import Options, whole
from tritonbatch.client.tensors import Array, Inputs, check_names, check_shape, checked_item, converted
from tritonbatch.errors import InvalidInput, RequestFailed

Item = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Sending:
    """How many requests to have under way, and the *deadline* (monotonic seconds) of all of them together."""

    options: Options
    in_flight: int
    deadline: float

    def __post_init__(self) -> None:
        """Refuse what is no number of requests."""
        if whole("in_flight", self.in_flight) < 1:
            raise InvalidInput(
                f"in_flight is {self.in_flight}: expected how many requests to have under way, 1 or more."
            )


async def infer_rows(core: Core, model: str, inputs: Inputs, sending: Sending) -> dict[str, Array]:
    """Send arrays of any number of rows in requests of at most ``max_batch_size``; outputs in the rows' order."""
    known = await _batching(core, model, sending)
    check_names(known, inputs)
    arrays = {name: converted(known.model, known.inputs[name], value) for name, value in inputs.items()}
    for name, array in arrays.items():
        check_shape(known, known.inputs[name], array.shape, known.inputs[name].shape, " The items are on axis 0.")
    lengths = {name: len(array) for name, array in arrays.items()}
    if len(set(lengths.values())) != 1 or 0 in lengths.values():
        raise InvalidRequest(
            f"Model {model}: got rows {lengths}; expected the same number, 1 or more, for every input."
        )
    rows = next(iter(lengths.values()))
    spans = list(pairwise([*range(0, rows, known.max_batch_size), rows]))
    parts = [{name: array[start:stop] for name, array in arrays.items()} for start, stop in spans]
    answers = await _send_all(core, model, parts, spans, sending)
    return {name: np.concatenate([answer[name] for answer in answers]) for name in answers[0]}


async def infer_items(core: Core, model: str, items: Iterable[Item], sending: Sending) -> list[dict[str, Array]]:
    """Send single items, neighbours of one shape together in batches of at most ``max_batch_size``."""
    known = await _batching(core, model, sending)
    if not isinstance(items, Iterable) or isinstance(items, (np.ndarray, str, bytes)):
        raise InvalidRequest(
            f"Model {model}: got {type(items).__name__} as items; expected a sequence of mappings, or one mapping of "
            "arrays with the items on axis 0."
        )
    ready = [checked_item(known, item, number) for number, item in enumerate(items)]
    parts, spans, start = [], [], 0
    for _, group in groupby(ready, key=_shapes):
        alike = list(group)
        for first in range(0, len(alike), known.max_batch_size):
            batch = alike[first : first + known.max_batch_size]
            parts.append({name: np.concatenate([each[name] for each in batch]) for name in batch[0]})
            spans.append((start, start + len(batch)))
            start += len(batch)
    answers = await _send_all(core, model, parts, spans, sending)
    results = []
    for answer, (first, stop) in zip(answers, spans, strict=True):
        results += [{name: array[row] for name, array in answer.items()} for row in range(stop - first)]
    return results


async def _batching(core: Core, model: str, sending: Sending) -> Contract:
    known = await core.contract(model, sending.options.version, sending.deadline)
    if known.max_batch_size == 0:
        raise InvalidRequest(f"Model {model} has max_batch_size 0, so there is no batch axis to split; use infer.")
    return known


async def _send_all(
    core: Core, model: str, parts: Sequence[Inputs], spans: Sequence[tuple[int, int]], sending: Sending
) -> list[dict[str, Array]]:
    def job(part: Inputs, span: tuple[int, int]) -> Callable[[], Coroutine[Any, Any, dict[str, Array]]]:
        async def send() -> dict[str, Array]:
            try:
                left_s = sending.deadline - time.monotonic()
                return await core.infer(model, part, sending.options, left_s, add_batch_axis=False)
            except RequestFailed as error:
                error.add_note(f"in the request of items {span[0]} to {span[1] - 1}")
                raise

        return send

    jobs = [job(part, span) for part, span in zip(parts, spans, strict=True)]
    return await core.transport.together(jobs, sending.in_flight)


def _shapes(item: Mapping[str, Array]) -> tuple[tuple[str, Any, tuple[int, ...]], ...]:
    return tuple((name, array.dtype, array.shape) for name, array in sorted(item.items()))
