"""Requests without copies: inputs and outputs lie in memory that the client and a server on the same host share.

    with SharedMemory(client, "linear", rows=8) as memory:
        memory.inputs["x"][:5] = samples
        y = memory.infer(rows=5)["y"]

The memory's name is removed as soon as the servers have opened it, so that not even a killed process leaves it behind.
"""

from __future__ import annotations

import logging
import os
import secrets
import time
from types import TracebackType
from typing import Literal, Self

import numpy as np

from tritonbatch.client.async_client import AsyncClient
from tritonbatch.client.client import DEFAULT_OPTIONS, Client
from tritonbatch.client.core import Core
from tritonbatch.client.errors import Cancelled, InvalidRequest, TimedOut, TryAgain, Unreachable
from tritonbatch.client.message import Answer, Request
from tritonbatch.client.options import Options, Protocol, whole
from tritonbatch.client.shared_calls import Plan, Shapes, Slot, plan, region_bytes, shared_call
from tritonbatch.client.shared_regions import FOLDER, KINDS, Places, Region
from tritonbatch.client.tensors import Array
from tritonbatch.client.transport import finished
from tritonbatch.errors import InvalidInput, RequestFailed

log = logging.getLogger("tritonbatch.client")

Kind = Literal["system", "cuda"]

NO_SHAPES: Shapes = {}
CLOSE_TIMEOUT_S = 5.0
IN_USE_WAIT_S, IN_USE_TRIES = 0.1, 100
"""A server keeps a region while a request uses it: how often, and how long, it is asked to give it up."""

UNANSWERED = (TimedOut, Cancelled, Unreachable)
"""Failures after which the server may still do what it was asked."""


class _Memory:
    """What both forms share, as coroutines over the client's pipeline."""

    def __init__(
        self,
        client: Client | AsyncClient,
        model: str,
        *,
        rows: int,
        shapes: Shapes = NO_SHAPES,
        kind: Kind = "system",
        options: Options = DEFAULT_OPTIONS,
    ) -> None:
        if kind not in KINDS:
            raise InvalidInput(f"Unknown kind of shared memory {kind!r}: expected 'system' or 'cuda'.")
        if not isinstance(client, (Client, AsyncClient)):
            raise InvalidInput(f"The client is {client!r:.60}: expected a Client or an AsyncClient.")
        self.inputs = Places()
        self._core: Core = client._core  # noqa: SLF001 - of the same package
        self._protocol: Protocol = client.protocol
        self._wanted = (model, rows, shapes, options)
        self._kind = kind
        self._regions: list[Region] = []
        self._registered: list[tuple[str, Region]] = []  # or perhaps, where no answer came
        self._plan: Plan | None = None
        self._unsure = False

    async def _open(self) -> None:
        if self._plan is not None:
            raise InvalidInput("This shared memory is in a with block already; make another one.")
        if self._core._retry.hedge_after_s is not None:  # noqa: SLF001
            raise InvalidInput(
                "The client sends requests twice (Retry.hedge_after_s), and the second would write to shared memory "
                "after the first was answered; use a client without."
            )
        model, rows, shapes, options = self._wanted
        planned = plan(await self._core.contract(model, options.version), options, rows, shapes)
        try:
            for use, slots in (("inputs", planned.inputs), ("outputs", planned.outputs)):
                name = f"tritonbatch-{use}-{os.getpid()}-{secrets.token_hex(8)}"
                self._regions.append(KINDS[self._kind](name, region_bytes(slots, rows)))
            for endpoint in self._core.balancer.endpoints:
                for region in self._regions:
                    await self._register(endpoint.address, region)
            for region in self._regions:
                region.unlink()  # every server has it open by now
        except BaseException:
            await self._close()
            raise
        self._plan, self._unsure = planned, False
        self.inputs = Places(
            planned.contract,
            {slot.name: _view(slot, slot.shape(rows), self._regions[0]) for slot in planned.inputs},
        )

    async def _register(self, address: str, region: Region) -> None:
        what, timeout_s = f"register_{region.ask}", self._core.timeout_s
        self._registered.append((address, region))
        try:
            await self._core.ask_at(address, what, region.name, region.body(self._protocol), timeout_s)
        except RequestFailed as failure:
            if not isinstance(failure, UNANSWERED):
                self._registered.pop()
            if "Unable to open shared memory region" not in str(failure):
                raise
            raise InvalidRequest(
                f"{failure}; expected a server on this host that sees the same {FOLDER} (docker: --ipc=host)."
            ) from failure

    async def _close(self) -> None:
        regions, self._regions = self._regions, []
        registered, self._registered = self._registered, []
        self.inputs, self._plan = Places(), None
        for region in regions:
            region.unlink()
        try:
            for address, region in registered:
                await self._unregister(address, region)
        finally:
            for region in regions:
                region.free()

    async def _unregister(self, address: str, region: Region) -> None:
        """Never fails: a server that is gone has forgotten the region, and whatever led here matters more."""
        for attempt in range(IN_USE_TRIES):
            try:
                await self._core.ask_at(address, f"unregister_{region.ask}", region.name, None, CLOSE_TIMEOUT_S)
            except InvalidInput as failure:  # the client is closed
                log.warning("shared memory %s may still be registered: %s", region.name, failure)
                return
            except RequestFailed as failure:
                in_use = "currently in use" in str(failure)
                if not in_use and (attempt > 0 or not isinstance(failure, TryAgain)):
                    log.warning("shared memory %s may still be registered: %s", region.name, failure)
                    return
                await self._core.transport.sleep(IN_USE_WAIT_S)
            else:
                return
        log.warning("shared memory %s is still in use at %s, and stays registered there", region.name, address)

    async def _infer(self, rows: int | None, timeout_s: float | None) -> dict[str, Array]:
        request, deadline = self._request(rows), self._core.timeout_s if timeout_s is None else timeout_s
        sure = False
        try:
            self._regions[0].upload()
            answer = await self._core.send(request, time.monotonic() + deadline)
            sure = True
        except RequestFailed as failure:
            sure = not isinstance(failure, UNANSWERED)
            raise
        finally:
            self._unsure = not sure
        return self._outputs(answer)

    def _request(self, rows: int | None) -> Request:
        planned = self._plan
        if planned is None:
            raise InvalidInput("Shared memory is used outside its with block; call infer inside.")
        if self._unsure:
            raise InvalidInput(
                "The call before ended without an answer, and the server may still write to this shared memory; leave "
                "the with block and enter a new one."
            )
        rows = planned.rows if rows is None else whole("rows", rows)
        model, options = planned.contract, planned.options
        if not 1 <= rows <= planned.rows:
            raise InvalidRequest(
                f"Model {model.model}: got rows={rows}; expected 1 to {planned.rows}, what was set up."
            )
        write = shared_call(self._protocol, planned, (self._regions[0].name, self._regions[1].name), rows)
        return Request(
            model.model, rows, options, write, model.takes_queue_timeout(options.priority), not model.stateful
        )

    def _outputs(self, answer: Answer) -> dict[str, Array]:
        assert self._plan is not None  # noqa: S101 - checked before it was sent
        region, shapes = self._regions[1], {output.name: output.shape for output in answer.outputs}
        region.download()
        views = {slot.name: _view(slot, shapes[slot.name], region) for slot in self._plan.outputs}
        for view in views.values():
            view.flags.writeable = False
        return views


def _view(slot: Slot, shape: tuple[int, ...], region: Region) -> Array:
    return np.ndarray(shape, slot.dtype, buffer=region.buffer, offset=slot.offset)


class SharedMemory(_Memory):
    """Memory for up to *rows* rows of *model*'s inputs and outputs, registered at every endpoint of a blocking client.

    ``inputs[name]`` is an array of shape (rows, *item) to fill (``inputs[name] = array`` copies all rows in); an
    optional input has one only when *shapes* names it.
    *shapes* gives the item shape, without the batch axis, of each tensor with free axes: exactly for an input, at most
    for an output. With *kind* ``cuda`` the tensors lie on GPU 0, and the arrays are copied there and back. A model
    without a batch axis has rows 1 and arrays of its item shape.

    All endpoints must be on this host and see its ``/dev/shm``. Triton from 26.04 on refuses shared memory, and says
    so, unless it runs with ``--allow-client-shm=true``, a flag that earlier ones do not know. One call at a time. On
    leaving, the regions are unregistered and freed, whatever happened; where a server still works on a request without
    an answer, leaving waits for it for up to ten seconds.

    Raises (on entering):
        InvalidRequest: rows, names or shapes do not fit the model, a tensor is text, or a server does not see the
            memory.
        InvalidInput: the client hedges, or the kind is unknown.
        NotSupported: ``/dev/shm`` has no room, or there is no GPU.
        RequestFailed: a server refused the memory.
    """

    def __enter__(self) -> Self:
        finished(self._open())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        finished(self._close())

    def infer(self, rows: int | None = None, *, timeout_s: float | None = None) -> dict[str, Array]:
        """Send the first *rows* rows (all when None) and return read-only views of the outputs by name.

        The views are valid until the next call or the end of the ``with`` block: copy what must live longer.

        Raises:
            InvalidInput: outside the ``with`` block, or after a call that ended without an answer.
            InvalidRequest: *rows* is more than there is memory for.
            RequestFailed: as :meth:`Client.infer <tritonbatch.client.client.Client.infer>`.
        """
        return finished(self._infer(rows, timeout_s))


class AsyncSharedMemory(_Memory):
    """As :class:`SharedMemory`, for an AsyncClient: ``async with``, and ``infer`` is awaited."""

    async def __aenter__(self) -> Self:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self._close()

    async def infer(self, rows: int | None = None, *, timeout_s: float | None = None) -> dict[str, Array]:
        """As :meth:`SharedMemory.infer`."""
        return await self._infer(rows, timeout_s)
