"""The client for threads and gevent: one small surface over HTTP or gRPC, safe to share between all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, NoReturn, Self, overload

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelMetadataResponse, ModelStatistics, ServerMetadataResponse

from tritonbatch.client.contract import Contract
from tritonbatch.client.core import Core
from tritonbatch.client.endpoints import addresses_of
from tritonbatch.client.errors import closed
from tritonbatch.client.many import Item, Sending, infer_items, infer_rows
from tritonbatch.client.message import Answer, Language, Request, check_request
from tritonbatch.client.options import NO_RETRY, Connections, Options, Protocol, Retry, check_connections
from tritonbatch.client.tensors import Array, Inputs
from tritonbatch.client.tracing import Tracer
from tritonbatch.client.transport import Transport, finished
from tritonbatch.errors import InvalidInput

DEFAULT_OPTIONS = Options()
DEFAULT_RETRY = Retry()
DEFAULT_CONNECTIONS = Connections()
LOAD_TIMEOUT_S = 600.0


class Client:
    """Speaks to one Triton, or to several replicas of it, at *urls* (``host:port``).

    *timeout_s* is the budget of one call: connecting, waiting in the queue, retries and the answer. Where the model's
    queue policy lets requests bring a timeout, what is left of it is passed on. *retry* None sends everything once.
    With a *tracer* of OpenTelemetry every request is a span that the server's own trace continues.

    Any number of threads or greenlets may share a client; so may processes forked over HTTP, where a child opens its
    own connections. Over gRPC a child must make its own client. ``with`` closes it.

    Raises:
        InvalidInput: an address has no port, or another scheme than ``http://``; the protocol is unknown; in every
            method, the client is closed, or was given what is no model, options or time.
        RequestFailed: in every method, one of the kinds in :mod:`tritonbatch.client.errors`.
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
        language, self._transport = _blocking(protocol, connections)
        self._core = Core(self.urls, language, self._transport, timeout_s, retry or NO_RETRY, tracer)
        self._closed = False

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: connections belong to one process."""
        raise TypeError("A Client cannot be pickled or copied: make a Client in each process.")

    def __enter__(self) -> Self:
        if self._closed:
            raise closed()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; later calls fail."""
        self._closed = True
        self._transport.close()

    def ready(self, model: str = "", version: str = "") -> bool:
        """Whether any server (and *model* there, when given) answers that it is ready.

        False when nothing answers; a closed client raises InvalidInput.
        """
        return finished(self._core.ready(model, version))

    def server_metadata(self) -> ServerMetadataResponse:
        """The server's name, version and extensions."""
        return finished(self._core.server_metadata())

    def metadata(self, model: str, version: str = "") -> ModelMetadataResponse:
        """The model's inputs and outputs; shapes include the batch axis as -1."""
        return finished(self._core.metadata(model, version))

    def config(self, model: str, version: str = "") -> ModelConfig:
        """The configuration that the server really uses, after its normalisation and auto-completion."""
        return finished(self._core.config(model, version))

    def contract(self, model: str, version: str = "") -> Contract:
        """What requests to the model must look like; asked for once, then remembered."""
        return finished(self._core.contract(model, version))

    def statistics(self, model: str, version: str = "") -> ModelStatistics:
        """The cumulative statistics of the model's only, or newest, served version.

        Over several servers, the sum of those that answer; it fails only when none does.
        """
        return finished(self._core.statistics(model, version))

    def settled_statistics(self, model: str) -> ModelStatistics:
        """The statistics once two readings agree: the server counts an execution shortly after it answered.

        While others load the model no two readings agree; after a second the last one is taken.
        """
        return finished(self._core.settled_statistics(model))

    def load(self, model: str, config: ModelConfig | None = None, *, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Load *model* on every server, with *config* instead of its file when given; needs explicit model control."""
        finished(self._core.load(model, config, timeout_s))

    def unload(self, model: str, *, timeout_s: float = LOAD_TIMEOUT_S) -> None:
        """Unload *model* on every server; needs explicit model control."""
        finished(self._core.unload(model, timeout_s))

    def infer(
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
        return finished(self._core.infer(model, inputs, options, timeout_s, add_batch_axis=add_batch_axis))

    @overload
    def infer_many(
        self,
        model: str,
        items: Mapping[str, Any],
        *,
        in_flight: int = 2,
        timeout_s: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> dict[str, Array]: ...

    @overload
    def infer_many(
        self,
        model: str,
        items: Sequence[Item],
        *,
        in_flight: int = 2,
        timeout_s: float | None = None,
        options: Options = DEFAULT_OPTIONS,
    ) -> list[dict[str, Array]]: ...

    def infer_many(
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
            return finished(
                infer_rows(self._core, model, items, Sending(options, in_flight, self._core.deadline(timeout_s)))
            )
        return finished(
            infer_items(self._core, model, items, Sending(options, in_flight, self._core.deadline(timeout_s)))
        )

    def request(
        self, model: str, inputs: Inputs, *, add_batch_axis: bool = False, options: Options = DEFAULT_OPTIONS
    ) -> Request:
        """Check *inputs* against the model and serialise them, to be sent any number of times."""
        return finished(self._core.request(model, inputs, options, add_batch_axis=add_batch_axis))

    def send(self, request: Request, *, timeout_s: float | None = None) -> Answer:
        """Send *request* and wait; the answer is decoded when asked for (``arrays()``, ``as_numpy(name)``)."""
        check_request(request)
        return finished(self._core.send(request, self._core.deadline(timeout_s)))


def language_of(protocol: Protocol) -> Language:
    """How *protocol* says things.

    Raises:
        InvalidInput: it is neither http nor grpc.
    """
    if protocol == "http":
        from tritonbatch.client.http_language import HttpLanguage  # noqa: PLC0415 - a gRPC user never needs it

        return HttpLanguage()
    if protocol == "grpc":
        from tritonbatch.client.grpc_language import GrpcLanguage  # noqa: PLC0415 - nor an HTTP user this

        return GrpcLanguage()
    raise InvalidInput(f"Unknown protocol {protocol!r}: expected 'http' or 'grpc'.")


def _blocking(protocol: Protocol, connections: Connections) -> tuple[Language, Transport]:
    language = language_of(protocol)
    if protocol == "grpc":
        from tritonbatch.client.grpc_wire import BlockingGrpc  # noqa: PLC0415

        return language, BlockingGrpc(connections)
    from tritonbatch.client.http_blocking import BlockingHttp  # noqa: PLC0415

    return language, BlockingHttp(connections)
