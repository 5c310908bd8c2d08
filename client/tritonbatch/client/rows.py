"""Rows of several requests as one batch and back, and what batchers need of a client. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import iscoroutinefunction
from typing import Any, Protocol

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelMetadataResponse

from tritonbatch.client.client import Client
from tritonbatch.client.contract import Contract
from tritonbatch.client.errors import ServerError
from tritonbatch.client.options import whole
from tritonbatch.client.tensors import Array, Inputs
from tritonbatch.errors import InvalidInput

Outputs = dict[str, Array]
Kind = tuple[tuple[str, np.dtype[Any], tuple[int, ...]], ...]


class Sender(Protocol):
    """What a batcher for threads sends through: a :class:`~tritonbatch.client.Client`, or anything like it."""

    def infer(self, model: str, inputs: Inputs, /) -> Outputs:
        """Send one request and wait for its outputs."""

    def metadata(self, model: str, /) -> ModelMetadataResponse:
        """The model's inputs and outputs."""

    def config(self, model: str, /) -> ModelConfig:
        """The configuration that the server uses."""


class AsyncSender(Protocol):
    """The same for asyncio: an :class:`~tritonbatch.client.AsyncClient`, or anything like it."""

    async def infer(self, model: str, inputs: Inputs, /) -> Outputs:
        """Send one request and wait for its outputs."""

    async def metadata(self, model: str, /) -> ModelMetadataResponse:
        """The model's inputs and outputs."""

    async def config(self, model: str, /) -> ModelConfig:
        """The configuration that the server uses."""


def check_sender(client: object, batcher: str) -> None:
    """Refuse what *batcher* cannot send through.

    Raises:
        InvalidInput: *client* is none, or of the other kind.
    """
    infer = getattr(client, "infer", None)
    awaits, wants_await = iscoroutinefunction(infer), batcher.startswith("Async")
    if infer is None or (awaits and not wants_await):
        other = f"; for an AsyncClient take Async{batcher}" if awaits else ""
        raise InvalidInput(f"{batcher} got {type(client).__name__} as client: expected a Client{other}.")
    if wants_await and isinstance(client, Client):
        raise InvalidInput(f"{batcher} got a Client: expected an AsyncClient; for a Client take {batcher[5:]}.")


def check_limit(known: Contract, option: str, rows: int) -> None:
    """Refuse a batch that the model does not take.

    Raises:
        InvalidInput: *rows* is not between 1 and the model's ``max_batch_size``.
    """
    whole(option, rows)
    if known.max_batch_size == 0:
        raise InvalidInput(
            f"Model {known.model} has max_batch_size 0: expected a model with a batch axis; call infer for each item."
        )
    if not 1 <= rows <= known.max_batch_size:
        raise InvalidInput(
            f"{option} is {rows}: model {known.model} takes 1 to {known.max_batch_size} rows; choose a number of these "
            "or raise its max_batch_size."
        )


def kind_of(arrays: Mapping[str, Array]) -> Kind:
    """What requests must have in common to share a batch: the names, types and item shapes of their inputs."""
    return tuple((name, array.dtype, array.shape[1:]) for name, array in sorted(arrays.items()))


def joined(parts: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    """The rows of *parts*, 1 or more of one kind, one after another."""
    if len(parts) == 1:
        return dict(parts[0])
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def cut(model: str, outputs: Mapping[str, Array], counts: Sequence[int]) -> list[Outputs]:
    """The outputs of a batch, cut into runs of *counts* rows; views, no copies.

    Raises:
        ServerError: an output does not have as many rows as the batch.
    """
    rows = sum(counts)
    for name, array in outputs.items():
        if array.ndim == 0 or len(array) != rows:
            raise ServerError(
                f"Model {model}, output {name}: got shape {array.shape} for a batch of {rows}; expected {rows} rows: "
                "such a model cannot be batched by its callers."
            )
    stops = np.cumsum(counts).tolist()
    spans = zip([0, *stops], stops, strict=False)
    return [{name: array[start:stop] for name, array in outputs.items()} for start, stop in spans]
