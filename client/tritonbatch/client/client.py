"""One small synchronous surface over tritonclient's HTTP and gRPC clients, which do the protocol.

Answers are the same protobufs for both transports. A client belongs to the thread, or the gevent hub, that made it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, Self

import numpy.typing as npt
from google.protobuf import json_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import (
    ModelConfigResponse,
    ModelMetadataResponse,
    ModelStatistics,
    ModelStatisticsResponse,
    ServerMetadataResponse,
)
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tritonbatch.client.errors import ServerError, mapped_errors
from tritonbatch.client.tensors import check_inputs
from tritonbatch.errors import InvalidInput, RequestFailed

Protocol = Literal["http", "grpc"]

SETTLE_S = 0.05
SETTLE_READINGS = 20


@dataclass(frozen=True, slots=True)
class Request:
    """Inputs that were checked and serialised once, to be sent any number of times; *rows* is their batch."""

    model: str
    rows: int
    tensors: tuple[Any, ...]


class Client:
    """Speaks to one Triton at *url* (``host:port``).

    *connections* is how many requests may be in flight at once over HTTP, one connection each; gRPC carries all of
    them on one. *timeout_s* bounds the wait for one answer.

    Raises:
        InvalidInput: the URL has a scheme, or the protocol is unknown.
        RequestFailed: in every method, one of the kinds in :mod:`tritonbatch.client.errors`.
    """

    def __init__(self, url: str, *, protocol: Protocol = "http", connections: int = 1, timeout_s: float = 60.0) -> None:
        _check_address(url)
        self.url = url
        self.protocol = protocol
        self.timeout_s = timeout_s
        self._grpc = protocol == "grpc"
        self._transport: Any = _transport(protocol)
        options = {} if self._grpc else {"concurrency": connections, "network_timeout": timeout_s}
        with mapped_errors(url):
            self._client = self._transport.InferenceServerClient(url, **options)
        self._known: dict[str, tuple[ModelMetadataResponse, ModelConfig]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def ready(self, model: str = "") -> bool:
        """Whether the server (and *model*, when given) answers that it is ready; False also when nothing answers."""
        try:
            with mapped_errors(self.url, model):
                return bool(self._client.is_model_ready(model) if model else self._client.is_server_ready())
        except RequestFailed:
            return False

    def server_metadata(self) -> ServerMetadataResponse:
        """The server's name, version and extensions."""
        with mapped_errors(self.url):
            return _as(ServerMetadataResponse, self._client.get_server_metadata())

    def metadata(self, model: str) -> ModelMetadataResponse:
        """The model's inputs and outputs; shapes include the batch axis as -1."""
        with mapped_errors(self.url, model):
            return _as(ModelMetadataResponse, self._client.get_model_metadata(model))

    def config(self, model: str) -> ModelConfig:
        """The configuration that the server really uses, after its normalisation and auto-completion."""
        with mapped_errors(self.url, model):
            answer = self._client.get_model_config(model)
        return answer.config if isinstance(answer, ModelConfigResponse) else _as(ModelConfig, answer)

    def statistics(self, model: str) -> ModelStatistics:
        """The cumulative statistics of the model's only, or newest, served version."""
        with mapped_errors(self.url, model):
            answer = _as(ModelStatisticsResponse, self._client.get_inference_statistics(model))
        if not answer.model_stats:
            raise ServerError(f"{self.url} has no statistics of model {model!r}; expected one entry per version.")
        newest: ModelStatistics = max(answer.model_stats, key=lambda entry: int(entry.version))
        return newest

    def settled_statistics(self, model: str) -> ModelStatistics:
        """The statistics once two readings agree: the server counts an execution shortly after it answered.

        While others load the model no two readings agree; after a second the last one is taken.
        """
        last = self.statistics(model)
        for _ in range(SETTLE_READINGS):
            time.sleep(SETTLE_S)
            now = self.statistics(model)
            if now == last:
                break
            last = now
        return last

    def request(self, model: str, inputs: Mapping[str, npt.NDArray[Any]]) -> Request:
        """Check *inputs* against the model and serialise them; arrays have the batch on axis 0."""
        if model not in self._known:
            self._known[model] = (self.metadata(model), self.config(model))
        metadata, config = self._known[model]
        rows = check_inputs(metadata, config.max_batch_size, inputs)
        return Request(model, rows, tuple(self._tensor(name, array) for name, array in inputs.items()))

    def send(self, request: Request) -> Any:
        """Send *request* and wait; returns tritonclient's result (``as_numpy(output_name)``)."""
        options = {"client_timeout": self.timeout_s} if self._grpc else {}
        with mapped_errors(self.url, request.model):
            return self._client.infer(request.model, list(request.tensors), **options)

    def infer(self, model: str, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Send *inputs* as one request and return the outputs by name."""
        result = self.send(self.request(model, inputs))
        outputs = self._known[model][0].outputs
        return {output.name: result.as_numpy(output.name) for output in outputs}

    def _tensor(self, name: str, array: npt.NDArray[Any]) -> Any:
        tensor = self._transport.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
        try:
            tensor.set_data_from_numpy(array)
        except InferenceServerException as error:
            raise InvalidInput(f"Input {name} cannot be serialised: {error.message()}") from error
        return tensor


def _check_address(url: str) -> None:
    host, _, port = url.rpartition(":")
    if "://" in url or not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise InvalidInput(f"The address {url!r} is not one: expected HOST:PORT without a scheme, as localhost:8000.")


def _transport(protocol: str) -> Any:
    if protocol == "grpc":
        import tritonclient.grpc  # noqa: PLC0415 - gRPC starts threads that an HTTP user never needs

        return tritonclient.grpc
    if protocol == "http":
        import tritonclient.http  # noqa: PLC0415 - it brings gevent, which a gRPC user never needs

        return tritonclient.http
    raise InvalidInput(f"Unknown protocol {protocol!r}: expected 'http' or 'grpc'.")


def _as(kind: Any, answer: Any) -> Any:
    """HTTP answers in JSON, gRPC in the protobuf itself; newer servers may send fields this schema lacks."""
    return json_format.ParseDict(answer, kind(), ignore_unknown_fields=True) if isinstance(answer, dict) else answer
