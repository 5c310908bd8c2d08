"""The client for asyncio: the surface of :class:`~tritonbatch.client.client.Client`, awaited."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, overload

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelMetadataResponse, ModelStatistics, ServerMetadataResponse

from tritonbatch.client.client import (
    DEFAULT_CONNECTIONS,
    DEFAULT_OPTIONS,
    DEFAULT_RETRY,
    LOAD_TIMEOUT_S,
    language_of,
)
from tritonbatch.client.contract import Contract
from tritonbatch.client.core import Core
from tritonbatch.client.endpoints import addresses_of
from tritonbatch.client.errors import closed
from tritonbatch.client.many import Item, Sending, infer_items, infer_rows
from tritonbatch.client.message import Answer, Request, check_request
from tritonbatch.client.options import NO_RETRY, Connections, Options, Protocol, Retry, check_connections
from tritonbatch.client.tensors import Array, Inputs
from tritonbatch.client.tracing import Tracer
from tritonbatch.client.transport import Transport


class AsyncClient:
    """As :class:`~tritonbatch.client.client.Client`, for the event loop in which it is first used: others are refused.

    Cancelling a task that waits here drops its request; over gRPC the server takes it out of its queue too, while over
    HTTP Triton does not look at the closed connection before it answers.
    """

    def __init__(
        self,
        urls: str | Sequence[str],
        *,
        protocol: Protocol = "http",
        timeout_s: float = 60.0,
        retry: Retry | None = DEFAULT_RETRY,
        connections: Connections = DEFAULT_CONNECTIONS,
        tracer: Tracer | None = None,
    ) -> None:
        self.urls = addresses_of(urls, base_path=protocol == "http")
        check_connections(connections)
        self.url = ", ".join(self.urls)
        self.protocol = protocol
        language = language_of(protocol)
        self._transport = _awaiting(protocol, connections)
        self._core = Core(self.urls, language, self._transport, timeout_s, retry or NO_RETRY, tracer)
        self._closed = False

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: connections belong to one process."""
        raise TypeError("An AsyncClient cannot be pickled or copied: make an AsyncClient in each process.")

    async def __aenter__(self) -> Self:
        if self._closed:
            raise closed()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; later calls fail."""
        self._closed = True
        if (closing := self._transport.close()) is not None:
            await closing

    async def ready(self, model: str = "", version: str = "") -> bool:
        """Whether any server (and *model* there, when given) answers that it is ready.

        False when nothing answers; a closed client raises InvalidInput.
        """
        return await self._core.ready(model, version)

    async def server_metadata(self) -> ServerMetadataResponse:
        """The server's name, version and extensions."""
        return await self._core.server_metadata()

    async def metadata(self, model: str, version: str = "") -> ModelMetadataResponse:
        """The model's inputs and outputs; shapes include the batch axis as -1."""
        return await self._core.metadata(model, version)

    async def config(self, model: str, version: str = "") -> ModelConfig:
        """The configuration that the server really uses, after its normalisation and auto-completion."""
        return await self._core.config(model, version)

    async def contract(self, model: str, version: str = "") -> Contract:
        """What requests to the model must look like; asked for once, then remembered."""
        return await self._core.contract(model, version)

    async def statistics(self, model: str, version: str = "") -> ModelStatistics:
        """The cumulative statistics of the model's only, or newest, served version.

        Over several servers, the sum of those that answer; it fails only when none does.
        """
        return await self._core.statistics(model, version)

    async def settled_statistics(self, model: str) -> ModelStatistics:
        """The statistics once two readings agree, or after a second the last one."""
        return await self._core.settled_statistics(model)

    async def load(self, model: str, config: ModelConfig | None = None, *, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load *model* on every server, with *config* instead of its file when given; needs explicit model control."""
        await self._core.load(model, config, timeout_s)

    async def unload(self, model: str, *, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Unload *model* on every server; needs explicit model control."""
        await self._core.unload(model, timeout_s)

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        add_batch_axis: bool = False,
        timeout_s: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> dict[str, Array]:
        """Send *inputs* as one request and return the outputs by name.

        Arrays have the batch on axis 0; with *add_batch_axis* they are one item, and the outputs come without the axis.
        """
        return await self._core.infer(model, inputs, options, timeout_s, add_batch_axis=add_batch_axis)

    @overload
    async def infer_many(
        self,
        model: str,
        items: Mapping[str, Any],
        *,
        in_flight: int = 2,
        timeout_s: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> dict[str, Array]: ...

    @overload
    async def infer_many(
        self,
        model: str,
        items: Sequence[Item],
        *,
        in_flight: int = 2,
        timeout_s: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> list[dict[str, Array]]: ...

    async def infer_many(
        self,
        model: str,
        items: Mapping[str, Any] | Sequence[Item],
        *,
        in_flight: int = 2,
        timeout_s: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> dict[str, Array] | list[dict[str, Array]]:
        """Send any number of items in requests of at most ``max_batch_size``, *in_flight* at once; results in order.

        *items* is a mapping of arrays with the items on axis 0, and so is the result; or a sequence of single items,
        whose shapes may differ, and the result is a list. *timeout_s* is for all of them together.
        """
        if isinstance(items, Mapping):
            return await infer_rows(
                self._core, model, items, Sending(options, in_flight, self._core.deadline(timeout_s))
            )
        return await infer_items(self._core, model, items, Sending(options, in_flight, self._core.deadline(timeout_s)))

    async def request(
        self, model: str, inputs: Inputs, *, add_batch_axis: bool = False, options: Options = DEFAULT_OPTIONS
    ) -> Request:
        """Check *inputs* against the model and serialise them, to be sent any number of times."""
        return await self._core.request(model, inputs, options, add_batch_axis=add_batch_axis)

    async def send(self, request: Request, *, timeout_s: float | None = None) -> Answer:
        """Send *request* and wait; the answer is decoded when asked for (``arrays()``, ``as_numpy(name)``)."""
        check_request(request)
        return await self._core.send(request, self._core.deadline(timeout_s))


def _awaiting(protocol: Protocol, connections: Connections) -> Transport:
    if protocol == "grpc":
        from tritonbatch.client.grpc_wire import AsyncGrpc  # noqa: PLC0415 - an HTTP user never needs it

        return AsyncGrpc(connections)
    from tritonbatch.client.http_async import AsyncHttp  # noqa: PLC0415 - nor a gRPC user this

    return AsyncHttp(connections)
