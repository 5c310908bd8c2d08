"""``tritonbatch serve``: the embedded Triton in the foreground."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.options import DEFAULT_REPOSITORY
from tritonbatch.server import EmbeddedServer, Ports


def serve(
    repository: Annotated[Path, typer.Argument(help="The model repository.")] = DEFAULT_REPOSITORY,
    variant: Annotated[
        str | None, typer.Option(help="Serve configs/VARIANT.pbtxt where a model has it, else config.pbtxt.")
    ] = None,
    model: Annotated[list[str] | None, typer.Option(help="Load only this model; repeat for several.")] = None,
    http_port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    grpc_port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
    metrics_port: Annotated[int, typer.Option(help="0 takes a free one.")] = 0,
) -> None:
    """Serve a model repository on the real Triton, without Docker, until Ctrl-C.

    It listens on localhost only. Linux on x86-64; elsewhere use the image (docker-compose.yml).

    Example: [bold]tritonbatch serve model_repository --variant dynamic --http-port 8000[/]
    """
    console = Console()
    ports = Ports(http=http_port, grpc=grpc_port, metrics=metrics_port)
    with EmbeddedServer(repository, config_name=variant, models=tuple(model or ()), ports=ports) as server:
        console.print(f"Triton is ready, serving {repository} ({variant or 'config.pbtxt'}):", highlight=False)
        console.print(f"  HTTP     http://{server.http_url}\n  gRPC     {server.grpc_url}", highlight=False)
        console.print(f"  metrics  {server.metrics_url}\nCtrl-C stops it.", highlight=False)
        while True:
            server.check_alive()
            time.sleep(0.5)
