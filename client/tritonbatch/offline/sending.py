"""One batch to the server and back: waits for a server that went away, and finds the item that a batch dies of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonbatch.client import Client, Options
from tritonbatch.client.errors import (
    Cancelled,
    InvalidRequest,
    NotReady,
    Overloaded,
    ServerError,
    TimedOut,
    TryAgain,
    Unreachable,
)
from tritonbatch.errors import RequestFailed
from tritonbatch.offline.gate import passing
from tritonbatch.offline.shaping import Item, stacked
from tritonbatch.offline.writing import Outputs

STRIKES = 3
"""How often an item alone at a server that was ready has to break the connection before it is held to be the cause."""
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 5.0

Outcome = Outputs | str
"""The outputs of an item, or why there are none."""


class Suspect(RequestFailed):
    """The connection breaks, or the model's process dies, whenever this batch is sent."""


@dataclass(frozen=True, slots=True)
class Sender:
    """How batches get to the server: always *batch* rows of one *version* of *model*."""

    client: Client
    model: str
    version: str
    batch: int
    patience_s: float
    folder: Path
    stop: threading.Event = field(default_factory=threading.Event)
    waiting: Callable[[str], None] = lambda _: None

    def ready(self) -> bool:
        """Whether the server, with this version of the model, answers."""
        return self.client.ready(self.model, self.version)


def outcomes(sender: Sender, items: Sequence[Item], *, suspected: bool = False) -> list[Outcome]:
    """The outcome of every one of *items* (at most a batch, all of one shape), in order.

    A batch that the server refuses, or fails on, is halved until the items are found that it fails on; so is one that
    breaks the connection again and again, or that the model's process dies of.

    Raises:
        RequestFailed: the server went away, or was overloaded, for longer than the patience.
        Cancelled: *sender.stop* was set.
    """
    strikes = 1 if suspected and len(items) > 1 else STRIKES
    try:
        return list(_answered(sender, items, strikes, alone=suspected))
    except (InvalidRequest, ServerError, Suspect) as error:
        if len(items) == 1:
            return [str(error)]
        suspected, middle = isinstance(error, Suspect), len(items) // 2
    return [
        *outcomes(sender, items[:middle], suspected=suspected),
        *outcomes(sender, items[middle:], suspected=suspected),
    ]


def _answered(sender: Sender, items: Sequence[Item], strikes: int, *, alone: bool) -> list[Outputs]:
    struck = pauses = 0
    dead = False
    deadline = time.monotonic() + sender.patience_s
    while True:
        try:
            return send_revived(sender, items) if dead else send(sender, items, alone=alone or struck > 0)
        except (TryAgain, TimedOut, Overloaded, InvalidRequest, ServerError) as error:
            failure: RequestFailed = error
        if _model_died(failure):
            if dead:
                raise Suspect(str(failure)) from failure
            dead = True
            continue
        if isinstance(failure, (InvalidRequest, ServerError)):
            if sender.ready():
                raise failure
            # A server that came back without the model refuses all items alike: no fault of theirs.
            failure = NotReady(str(failure))
        elif isinstance(failure, (Unreachable, TimedOut)):
            struck += 1
            deadline = time.monotonic() + sender.patience_s
        if struck >= strikes:
            raise Suspect(f"The connection broke {struck} times, the last time with: {failure}") from failure
        wait(sender, failure, deadline, pauses)
        pauses += 1


def _model_died(failure: RequestFailed) -> bool:
    """Whether the Python process of the model is gone; the server goes on to call such a model ready."""
    return isinstance(failure, ServerError) and "stub process" in str(failure).lower()


def send(sender: Sender, items: Sequence[Item], *, alone: bool = False) -> list[Outputs]:
    """Send *items* as one full batch, and return the outputs of each; *alone* also asks first whether it is ready.

    Raises:
        RequestFailed: in one of the kinds of :mod:`tritonbatch.client.errors`.
    """
    with passing(sender.folder, alone=alone):
        if alone and not sender.ready():
            raise NotReady(f"Model {sender.model} is not ready at {sender.client.url}.")
        return _exchange(sender, items)


def send_revived(sender: Sender, items: Sequence[Item]) -> list[Outputs]:
    """Load the model anew, for its process has died, and send *items* alone: if it dies again, it is of them.

    Raises:
        NotReady: it is still dead, as the server does not let it be loaded.
        RequestFailed: as :func:`send`.
    """
    with passing(sender.folder, alone=True):
        revived = _revive(sender)
        try:
            return _exchange(sender, items)
        except ServerError as error:
            if not _model_died(error):
                raise
            if not revived:
                raise NotReady(str(error)) from error
            _revive(sender)  # for whoever comes next
            raise


def _revive(sender: Sender) -> bool:
    sender.waiting(f"The process of model {sender.model} died: loading it anew.")
    try:
        config = sender.client.config(sender.model, sender.version)  # the one in use need not be the repository's
        sender.client.unload(sender.model)  # without, the server sees no change and leaves it as it is
        sender.client.load(sender.model, config)
    except RequestFailed:
        return False
    return True


def _exchange(sender: Sender, items: Sequence[Item]) -> list[Outputs]:
    if sender.stop.is_set():
        raise Cancelled("The job was interrupted.")
    answer = sender.client.infer(sender.model, stacked(items, sender.batch), options=Options(version=sender.version))
    for name, array in answer.items():
        if array.ndim == 0 or len(array) != sender.batch:
            raise ServerError(
                f"Model {sender.model} answered {name} with shape {array.shape} to a batch of {sender.batch}: expected "
                "a row for each; check the model."
            )
    return [{name: array[row] for name, array in answer.items()} for row in range(len(items))]


def wait(sender: Sender, failure: RequestFailed, deadline: float, pauses: int = 0) -> None:
    """Pause, longer with every one of *pauses*, and until the server is ready, but not over *deadline* (monotonic s).

    Raises:
        RequestFailed: *failure*, when the deadline has passed.
        Cancelled: the job was interrupted.
    """
    while True:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise failure
        sender.waiting(str(failure))
        if sender.stop.wait(min(FIRST_PAUSE_S * 2 ** min(pauses, 10), LONGEST_PAUSE_S, left_s)):
            raise Cancelled("The job was interrupted.") from failure
        if sender.ready():
            return
        pauses += 1
