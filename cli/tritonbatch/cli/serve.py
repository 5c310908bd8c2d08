"""``tritonbatch serve``: the embedded Triton in the foreground."""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.options import DEFAULT_REPOSITORY
from tritonbatch.errors import InvalidInput
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
    """Serve a model repository on the real Triton, without Docker, until Ctrl-C or SIGTERM.

    It listens on localhost only. Linux on x86-64; elsewhere use the image (docker-compose.yml).

    Example: [bold]tritonbatch serve model_repository --variant dynamic --http-port 8000[/]
    """
    console = Console()
    without = _without_variant(repository, model or (), variant) if variant else []
    ports = Ports(http=http_port, grpc=grpc_port, metrics=metrics_port)
    with EmbeddedServer(repository, config_name=variant, models=tuple(model or ()), ports=ports) as server:
        console.print(f"Triton is ready, serving {repository} ({variant or 'config.pbtxt'}):", highlight=False)
        console.print(f"  HTTP     http://{server.http_url}\n  gRPC     {server.grpc_url}", highlight=False)
        console.print(f"  metrics  {server.metrics_url}", highlight=False)
        if without:
            names = ", ".join(without)
            console.print(f"Without {variant}, so with config.pbtxt: {names}", highlight=False, soft_wrap=True)
        console.print("Ctrl-C stops it.", highlight=False)
        try:
            while True:
                server.check_alive()
                time.sleep(0.5)
        finally:
            # Whoever asks again while Triton stops would be told that it has.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _without_variant(repository: Path, models: Sequence[str], variant: str) -> list[str]:
    """Those of *models* (all of *repository* if none are named) that do not have *variant*.

    Raises:
        InvalidInput: none has it.
    """
    if not repository.is_dir():
        return []  # which the server says
    folders = [path for path in sorted(repository.iterdir()) if path.is_dir() and not path.name.startswith(".")]
    folders = [path for path in folders if not models or path.name in models]
    without = [path.name for path in folders if not (path / "configs" / f"{variant}.pbtxt").is_file()]
    if folders and len(without) == len(folders):
        present = sorted({file.stem for path in folders for file in (path / "configs").glob("*.pbtxt")})
        raise InvalidInput(
            f"No variant {variant!r} of {', '.join(without)} in {repository}: expected {', '.join(present) or 'none'}; "
            "choose one, or write it with `tritonbatch export --variant`."
        )
    return without
