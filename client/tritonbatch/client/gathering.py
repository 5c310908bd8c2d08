"""Which requests of concurrent callers share a batch, when it leaves, and who gets which part of its answer.

No clock, no lock and no server: times are arguments, so the batchers for threads and for asyncio decide alike.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Generic, Protocol, TypeVar

from tritonbatch.client.contract import Contract
from tritonbatch.client.errors import InvalidRequest, ServerError
from tritonbatch.client.rows import Kind, Outputs, cut, joined, kind_of
from tritonbatch.client.tensors import Array, Inputs, checked
from tritonbatch.errors import InvalidInput, RequestFailed

Outcome = Outputs | Exception


@dataclass(frozen=True, slots=True)
class Part:
    """What one caller brings to a batch: checked arrays with *rows* rows."""

    inputs: dict[str, Array]
    rows: int
    kind: Kind


class HasPart(Protocol):
    """A waiting caller."""

    @property
    def part(self) -> Part:
        """What it brings."""


C = TypeVar("C", bound=HasPart)


@dataclass(eq=False, slots=True)
class Batch(Generic[C]):
    """Callers whose rows travel together, in the order they came; *leaves_at* is on the clock of ``now``."""

    leaves_at: float
    calls: list[C] = field(default_factory=list)
    rows: int = 0
    has_left: bool = False


class Gathering(Generic[C]):
    """The open batches, one per kind of request.

    A batch leaves when it holds *max_rows* rows, when its oldest request has waited *max_delay_s*, or when a request
    comes that does not fit into the rest of it. A request is never split.

    Raises:
        InvalidInput: the delay is negative or no number.
    """

    def __init__(self, max_rows: int, max_delay_s: float) -> None:
        given: object = max_delay_s
        if not isinstance(given, Real) or not 0 <= float(max_delay_s) < math.inf:
            raise InvalidInput(f"max_delay_s is {max_delay_s!r}: expected seconds, 0 or more, such as 0.002.")
        self.max_rows = max_rows
        self.max_delay_s = max_delay_s
        self._open: dict[Kind, Batch[C]] = {}

    def add(self, call: C, now: float) -> tuple[Batch[C], list[Batch[C]]]:
        """Place *call*; return the batch it is in, and the batches that leave now, in order."""
        leaving = self.due(now)
        batch = self._open.get(call.part.kind)
        if batch is not None and batch.rows + call.part.rows > self.max_rows:
            leaving.append(self._closed(call.part.kind))
            batch = None
        if batch is None:
            batch = self._open[call.part.kind] = Batch(now + self.max_delay_s)
        batch.calls.append(call)
        batch.rows += call.part.rows
        if batch.rows == self.max_rows or batch.leaves_at <= now:
            leaving.append(self._closed(call.part.kind))
        return batch, leaving

    def due(self, now: float) -> list[Batch[C]]:
        """The batches whose oldest request has waited long enough, the oldest first; they leave."""
        return [self._closed(kind) for kind, batch in tuple(self._open.items()) if batch.leaves_at <= now]

    def next_due(self) -> float | None:
        """When the next batch is due; None when nothing waits."""
        return min((batch.leaves_at for batch in self._open.values()), default=None)

    def drain(self) -> list[Batch[C]]:
        """All open batches; they leave."""
        return self.due(math.inf)

    def withdraw(self, call: C, batch: Batch[C]) -> None:
        """Take *call* out of *batch*, whether that has left or not; the others stay as they are."""
        if call in batch.calls:
            batch.calls.remove(call)
            batch.rows -= call.part.rows
        if not batch.calls and self._open.get(call.part.kind) is batch:
            del self._open[call.part.kind]

    def _closed(self, kind: Kind) -> Batch[C]:
        batch = self._open.pop(kind)
        batch.has_left = True
        return batch


def part_of(known: Contract, inputs: Inputs, max_rows: int) -> Part:
    """Check *inputs* by themselves, so that a caller's mistake never reaches the batch of others.

    Raises:
        InvalidRequest: they do not fit the model, or have more than *max_rows* rows.
    """
    rows, arrays = checked(known, inputs)
    if rows > max_rows:
        raise InvalidRequest(
            f"Model {known.model}: got {rows} rows in one call; expected 1 to {max_rows} (the batcher's max_rows): "
            "split them."
        )
    return Part(arrays, rows, kind_of(arrays))


async def deliver(
    model: str,
    calls: Sequence[C],
    ask: Callable[[Inputs], Awaitable[Outputs]],
    settle: Callable[[Sequence[tuple[C, Outcome]]], None],
) -> None:
    """Send the rows of *calls* through *ask* as one request and *settle* every call.

    When that request fails for what may be the fault of one of them, each is sent alone, so that only that one fails.
    """
    outcome = await _outcome(ask, calls)
    if len(calls) > 1 and isinstance(outcome, (InvalidRequest, ServerError)):
        # One after another: side by side, the server's dynamic batcher could put them together again.
        for call in calls:
            settle([(call, await _outcome(ask, [call]))])
        return
    settle(list(zip(calls, shares(model, outcome, [call.part.rows for call in calls]), strict=True)))


async def _outcome(ask: Callable[[Inputs], Awaitable[Outputs]], calls: Sequence[C]) -> Outcome:
    try:
        return await ask(joined([call.part.inputs for call in calls]))
    except Exception as error:  # noqa: BLE001 - whatever it is, every caller of the batch must learn of it
        return error


def shares(model: str, outcome: Outcome, counts: Sequence[int]) -> list[Outcome]:
    """What each caller gets of a batch's *outcome*: its rows, or an exception of its own caused by the batch's."""
    if isinstance(outcome, Exception):
        return [outcome] if len(counts) == 1 else [_caused_by(outcome) for _ in counts]
    try:
        return [*cut(model, outcome, counts)]
    except ServerError as error:
        return shares(model, error, counts)


def _caused_by(error: Exception) -> Exception:
    """The same error as an instance of its own: two threads raising one would mix up their tracebacks."""
    try:
        twin = type(error)(*error.args)
    except TypeError:  # an exception whose constructor takes something else than its args
        twin = RequestFailed(f"The batch failed with {type(error).__name__}: {error}")
    twin.__cause__ = error
    return twin
