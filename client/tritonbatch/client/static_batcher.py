"""Static batching: the caller forms batches of one fixed size and runs them one after another."""

from __future__ import annotations

import logging
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping
from typing import Any

from tritonbatch.client.contract import Contract, contract
from tritonbatch.client.fixed_batches import Batch, Plan, batches_of, checked_rows, packed, planned, repeated
from tritonbatch.client.options import whole
from tritonbatch.client.rows import AsyncSender, Outputs, Sender, check_limit, check_sender, cut, joined
from tritonbatch.client.tensors import Array, Inputs
from tritonbatch.client.transport import finished
from tritonbatch.errors import InvalidInput, RequestFailed

logger = logging.getLogger(__name__)

WARM_EXECUTIONS = 2
TIMED_EXECUTIONS = 5


class StaticBatcher:
    """Runs *model* in batches of exactly *batch_size* rows, one after another; the last one is padded.

    Raises:
        InvalidInput: *batch_size* is not between 1 and the model's ``max_batch_size``.
        RequestFailed: here and in every method, what the client raises.
    """

    def __init__(self, client: Sender, model: str, batch_size: int) -> None:
        check_sender(client, "StaticBatcher")
        self._client = client
        self._model = model
        self._batch_size = batch_size
        self._known = contract(client.metadata(model), client.config(model))
        check_limit(self._known, "batch_size", batch_size)
        self._batch_ms: float | None = None

    def plan(self, inputs: Inputs, rows: int | None = None) -> Plan:
        """What :meth:`run` will do with *inputs*; with *rows* given, *inputs* are only a sample of so many rows.

        The time of a batch is the median of a few executions, after some warm ones, of the first rows of *inputs*
        (repeated where they are fewer than a batch). It is the caller's time: the network and the wait in the server's
        queue are in it. It is measured once per batcher.

        Raises:
            InvalidRequest: *inputs* do not fit the model.
            InvalidInput: *rows* is below 1.
        """
        count, arrays = checked_rows(self._known, inputs)
        return planned(_positive(rows, count), self._batch_size, self._measured_ms(arrays, count))

    def run(self, inputs: Inputs) -> Outputs:
        """Infer arrays of any number of rows and return the outputs, row by row; the plan is logged before.

        Raises:
            InvalidRequest: *inputs* do not fit the model, have no rows, or not the same number of them.
        """
        rows, arrays = checked_rows(self._known, inputs)
        logger.info("Model %s: %s", self._model, planned(rows, self._batch_size, self._measured_ms(arrays, rows)))
        return joined([self._sent(batch) for batch in batches_of(arrays, rows, self._batch_size)])

    def stream(self, items: Iterable[Mapping[str, Any]]) -> Iterator[Outputs]:
        """Infer single *items* (no batch axis) lazily and in order; no more than one batch of them is held.

        Raises:
            InvalidRequest: an item does not fit the model, or has other shapes than those before it in its batch.
        """
        logger.info("Model %s: a stream in batches of %d", self._model, self._batch_size)
        for batch in packed(self._known, items, self._batch_size):
            yield from _items(self._sent(batch))

    def _sent(self, batch: Batch) -> Outputs:
        return finished(_sent(self._model, self._ask, batch))

    def _measured_ms(self, arrays: Mapping[str, Array], rows: int) -> float:
        if self._batch_ms is None:
            self._batch_ms = finished(_measured_ms(self._ask, repeated(arrays, rows, self._batch_size)))
        return self._batch_ms

    async def _ask(self, inputs: Inputs) -> Outputs:
        return self._client.infer(self._model, inputs)


class AsyncStaticBatcher:
    """As :class:`StaticBatcher`, awaited. The first call asks the server about the model and checks *batch_size*."""

    def __init__(self, client: AsyncSender, model: str, batch_size: int) -> None:
        check_sender(client, "AsyncStaticBatcher")
        whole("batch_size", batch_size)
        self._client = client
        self._model = model
        self._batch_size = batch_size
        self._known: Contract | None = None
        self._batch_ms: float | None = None

    async def plan(self, inputs: Inputs, rows: int | None = None) -> Plan:
        """As :meth:`StaticBatcher.plan`."""
        count, arrays = checked_rows(await self._contract(), inputs)
        return planned(_positive(rows, count), self._batch_size, await self._measured_ms(arrays, count))

    async def run(self, inputs: Inputs) -> Outputs:
        """As :meth:`StaticBatcher.run`."""
        rows, arrays = checked_rows(await self._contract(), inputs)
        logger.info("Model %s: %s", self._model, planned(rows, self._batch_size, await self._measured_ms(arrays, rows)))
        return joined(
            [await _sent(self._model, self._ask, batch) for batch in batches_of(arrays, rows, self._batch_size)]
        )

    async def stream(self, items: Iterable[Mapping[str, Any]]) -> AsyncIterator[Outputs]:
        """As :meth:`StaticBatcher.stream`."""
        logger.info("Model %s: a stream in batches of %d", self._model, self._batch_size)
        for batch in packed(await self._contract(), items, self._batch_size):
            for item in _items(await _sent(self._model, self._ask, batch)):
                yield item

    async def _contract(self) -> Contract:
        if self._known is None:
            known = contract(await self._client.metadata(self._model), await self._client.config(self._model))
            check_limit(known, "batch_size", self._batch_size)
            self._known = known
        return self._known

    async def _measured_ms(self, arrays: Mapping[str, Array], rows: int) -> float:
        if self._batch_ms is None:
            self._batch_ms = await _measured_ms(self._ask, repeated(arrays, rows, self._batch_size))
        return self._batch_ms

    async def _ask(self, inputs: Inputs) -> Outputs:
        return await self._client.infer(self._model, inputs)


async def _sent(model: str, ask: Callable[[Inputs], Awaitable[Outputs]], batch: Batch) -> Outputs:
    try:
        outputs = await ask(batch.inputs)
    except RequestFailed as error:
        error.add_note(f"in the batch of items {batch.first} to {batch.first + batch.rows - 1}")
        raise
    return cut(model, outputs, [batch.rows, batch.padding])[0]


async def _measured_ms(ask: Callable[[Inputs], Awaitable[Outputs]], sample: Inputs) -> float:
    taken_s = []
    for _ in range(WARM_EXECUTIONS + TIMED_EXECUTIONS):
        began = time.perf_counter()
        await ask(sample)
        taken_s.append(time.perf_counter() - began)
    return 1000 * statistics.median(taken_s[WARM_EXECUTIONS:])


def _items(outputs: Outputs) -> Iterator[Outputs]:
    for row in range(len(next(iter(outputs.values())))):
        yield {name: array[row] for name, array in outputs.items()}


def _positive(rows: int | None, count: int) -> int:
    if rows is not None and whole("rows", rows) < 1:
        raise InvalidInput(f"rows is {rows}: expected how many rows there will be, 1 or more.")
    return count if rows is None else rows
