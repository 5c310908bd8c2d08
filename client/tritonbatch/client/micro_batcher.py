"""Batching by the caller: concurrent callers in one process share requests, without the server's dynamic batcher."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from tritonbatch.client.contract import Contract, contract
from tritonbatch.client.errors import Cancelled
from tritonbatch.client.gathering import Batch, Gathering, Outcome, Part, deliver, part_of
from tritonbatch.client.options import whole
from tritonbatch.client.rows import AsyncSender, Outputs, Sender, check_limit, check_sender
from tritonbatch.client.tensors import Inputs
from tritonbatch.client.transport import finished
from tritonbatch.errors import InvalidInput


@dataclass(eq=False, slots=True)
class _Call:
    part: Part
    changed: threading.Condition
    batch: Batch[_Call] | None = None
    outcome: Outcome | None = None


class MicroBatcher:
    """Gathers the requests of concurrent threads (or greenlets) into batches for *model*.

    A batch leaves when *max_rows* rows wait or its oldest request has waited *max_delay_s*, whichever is first. Only
    requests with the same inputs, types and item shapes share one. There is no thread behind it: the first caller of a
    batch leads it, sends for all of them and hands out the rows; when it is interrupted, the next one takes over, which
    may send the others' rows a second time. ``with`` closes it.

    Raises:
        InvalidInput: *max_rows* is not between 1 and the model's ``max_batch_size``, or the delay is negative; the
            client is no Client.
        RequestFailed: the model cannot be asked about.
    """

    def __init__(self, client: Sender, model: str, *, max_rows: int, max_delay_s: float) -> None:
        check_sender(client, "MicroBatcher")
        self._client = client
        self._model = model
        self._known = contract(client.metadata(model), client.config(model))
        check_limit(self._known, "max_rows", max_rows)
        self._gathering: Gathering[_Call] = Gathering(max_rows, max_delay_s)
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._callers: set[_Call] = set()
        self._closed = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Send what waits, and return when every caller has its answer; later calls are refused."""
        with self._lock:
            self._closed = True
            _wake_leaders(self._gathering.drain())
            self._idle.wait_for(lambda: not self._callers)

    def infer(self, inputs: Inputs) -> Outputs:
        """Wait for a batch with *inputs* (arrays of 1 to *max_rows* rows) and return the outputs of these rows.

        When a batch fails with InvalidRequest or ServerError, its requests are sent again one by one; any other error
        goes to all of its callers.

        Raises:
            InvalidRequest: the inputs do not fit the model or are too many rows.
            InvalidInput: the batcher is closed.
            RequestFailed: what the client raises.
        """
        # One Condition per caller, all over one lock: whoever has news wakes exactly those whom it concerns.
        call = _Call(part_of(self._known, inputs, self._gathering.max_rows), threading.Condition(self._lock))
        try:
            batch = self._place(call)
            while call.outcome is None:
                if calls := self._calls_to_send(call, batch):
                    finished(deliver(self._model, calls, self._ask, self._settle))
        finally:
            self._leave(call)
        return _result(call.outcome)

    def _place(self, call: _Call) -> Batch[_Call]:
        with self._lock:
            _refuse_when(self._closed, self._model)
            self._callers.add(call)
            call.batch, leaving = self._gathering.add(call, time.monotonic())
            _wake_leaders(leaving)
            return call.batch

    def _calls_to_send(self, call: _Call, batch: Batch[_Call]) -> list[_Call]:
        """Wait until *call* leads a batch that leaves (the calls in it), or has its outcome (none)."""
        with self._lock:
            while call.outcome is None:
                now = time.monotonic()
                leads = batch.calls[0] is call
                if leads and batch.has_left:
                    return list(batch.calls)
                if leads and batch.leaves_at <= now:
                    _wake_leaders(self._gathering.due(now))
                else:
                    # A follower's wait ends with its leader's request, so with the client's timeout at the latest.
                    call.changed.wait(batch.leaves_at - now if leads else None)
        return []

    async def _ask(self, inputs: Inputs) -> Outputs:
        return self._client.infer(self._model, inputs)

    def _settle(self, outcomes: Sequence[tuple[_Call, Outcome]]) -> None:
        with self._lock:
            for call, outcome in outcomes:
                call.outcome = outcome
                self._withdraw(call)
                call.changed.notify()

    def _leave(self, call: _Call) -> None:
        with self._lock:
            self._withdraw(call)
            self._callers.discard(call)
            self._idle.notify_all()
            # Interrupted, the caller leaves others behind: the next one leads them.
            if call.outcome is None and call.batch is not None and call.batch.calls:
                call.batch.calls[0].changed.notify()

    def _withdraw(self, call: _Call) -> None:
        if call.batch is not None:
            self._gathering.withdraw(call, call.batch)


@dataclass(eq=False, slots=True)
class _Awaiting:
    part: Part
    outcome: asyncio.Future[Outcome]


class AsyncMicroBatcher:
    """As :class:`MicroBatcher`, for the tasks of one event loop. ``async with`` closes it.

    The first call asks the server about the model, and raises InvalidInput when *max_rows* does not fit it.
    """

    def __init__(self, client: AsyncSender, model: str, *, max_rows: int, max_delay_s: float) -> None:
        check_sender(client, "AsyncMicroBatcher")
        whole("max_rows", max_rows)
        self._client = client
        self._model = model
        self._known: Contract | None = None
        self._asking = asyncio.Lock()
        self._gathering: Gathering[_Awaiting] = Gathering(max_rows, max_delay_s)
        self._timer: asyncio.TimerHandle | None = None
        self._under_way: set[asyncio.Task[None]] = set()
        self._closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Send what waits, and return when every batch is answered; later calls are refused."""
        self._closed = True
        self._send(self._gathering.drain())
        if self._under_way:
            await asyncio.wait(self._under_way)

    async def infer(self, inputs: Inputs) -> Outputs:
        """As :meth:`MicroBatcher.infer`. A cancelled caller leaves its batch; the others' request is not cancelled."""
        part = part_of(await self._contract(), inputs, self._gathering.max_rows)
        _refuse_when(self._closed, self._model)
        loop = asyncio.get_running_loop()
        call = _Awaiting(part, loop.create_future())
        batch, leaving = self._gathering.add(call, loop.time())
        self._send(leaving)
        try:
            return _result(await call.outcome)
        finally:
            self._gathering.withdraw(call, batch)

    async def _contract(self) -> Contract:
        async with self._asking:
            if self._known is None:
                known = contract(await self._client.metadata(self._model), await self._client.config(self._model))
                check_limit(known, "max_rows", self._gathering.max_rows)
                self._known = known
        return self._known

    def _send(self, leaving: Sequence[Batch[_Awaiting]]) -> None:
        """Start the requests of *leaving*, and set the timer for the batch that is due next."""
        for batch in leaving:
            task = asyncio.create_task(self._deliver(list(batch.calls)))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)
        due = self._gathering.next_due()
        if self._timer is not None:
            if self._timer.when() == due:
                return
            self._timer.cancel()
        self._timer = None if due is None else asyncio.get_running_loop().call_at(due, self._send_due)

    def _send_due(self) -> None:
        # The loop may fire a timer a little early; then nothing is due and it is set again.
        self._timer = None
        self._send(self._gathering.due(asyncio.get_running_loop().time()))

    async def _deliver(self, calls: Sequence[_Awaiting]) -> None:
        try:
            await deliver(self._model, calls, self._ask, _settle)
        except BaseException as error:
            # Cancelled from below: the client or the event loop is closing. Nobody may wait for ever.
            message = f"Model {self._model}: the batch broke off ({type(error).__name__}: {error})."
            _settle([(call, Cancelled(message)) for call in calls])
            raise

    async def _ask(self, inputs: Inputs) -> Outputs:
        return await self._client.infer(self._model, inputs)


def _settle(outcomes: Sequence[tuple[_Awaiting, Outcome]]) -> None:
    for call, outcome in outcomes:
        if not call.outcome.done():
            call.outcome.set_result(outcome)


def _wake_leaders(leaving: Sequence[Batch[_Call]]) -> None:
    for batch in leaving:
        batch.calls[0].changed.notify()


def _refuse_when(closed: bool, model: str) -> None:  # noqa: FBT001 - the state of the batcher
    if closed:
        raise InvalidInput(f"The micro-batcher of model {model} is closed: expected an open one; make a new one.")


def _result(outcome: Outcome) -> Outputs:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
