"""Where the variants of a comparison are served: an embedded server each, or one that runs already."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.client import Client, Protocol
from tritonbatch.errors import RequestFailed, ServerFailed
from tritonbatch.repository.config import scheduler_of
from tritonbatch.repository.layout import variant_config
from tritonbatch.server import EmbeddedServer


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A running server: where Locust sends, and where statistics are read (HTTP or gRPC, as *protocol* says)."""

    url: str
    protocol: Protocol


Serving = Callable[[str], contextlib.AbstractContextManager[Endpoint]]
"""``serving(variant)`` gives a server with that variant for the length of a ``with`` block."""


def embedded(repository: Path, models: Sequence[str], protocol: Protocol) -> Serving:
    """Serve each variant of *models* from *repository* with an embedded server of its own.

    Raises (in the ``with`` block):
        ServerFailed: the server died, or serves another scheduler or batch limit than the variant's file says.
    """

    @contextlib.contextmanager
    def serving(variant: str) -> Iterator[Endpoint]:
        with EmbeddedServer(repository, config_name=variant, models=models) as server:
            with Client(server.http_url) as client:
                for model in models:
                    check_served(variant_config(repository, model, variant), client.config(model))
            try:
                yield Endpoint(url=server.grpc_url if protocol == "grpc" else server.http_url, protocol=protocol)
            except RequestFailed:
                server.check_alive()  # its own last words explain more than a refused connection
                raise

    return serving


def check_served(written: ModelConfig, served: ModelConfig) -> None:
    """Check that the server uses the scheduler and the batch limit that the configuration file says.

    A backend may complete a configuration: TensorRT adds ``dynamic_batching {}`` to one without a scheduler, and a
    baseline measured that way would not be one.

    Raises:
        ServerFailed: they differ; names the model, got and expected.
    """
    for what, got, expected in (
        ("scheduler", scheduler_of(served), scheduler_of(written)),
        ("max_batch_size", served.max_batch_size, written.max_batch_size),
    ):
        if got != expected:
            raise ServerFailed(
                f"Triton serves {served.name} with {what} {got}, its configuration says {expected}: "
                "start it with --disable-auto-complete-config, or complete the configuration."
            )


def running(url: str, protocol: Protocol) -> Serving:
    """Use the server at *url* for every variant, as it is configured."""

    @contextlib.contextmanager
    def serving(variant: str) -> Iterator[Endpoint]:  # noqa: ARG001 - it serves what it serves
        yield Endpoint(url=url, protocol=protocol)

    return serving
