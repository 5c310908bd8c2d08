"""``tritonbatch rollback``: an earlier version of a model is served again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.options import DEFAULT_REPOSITORY
from tritonbatch.errors import InvalidInput
from tritonbatch.repository import versions


def rollback(
    model: Annotated[str, typer.Argument(help="The model's name in the repository.")],
    repository: Annotated[Path, typer.Option(help="The model repository.")] = DEFAULT_REPOSITORY,
    to: Annotated[int | None, typer.Option(help="The version to serve; the one before by default.")] = None,
) -> None:
    """Make an earlier version of a model the one that Triton serves, or a later one again.

    Triton serves the highest version, so those above the chosen one move to MODEL/set-aside. Nothing is deleted; name
    a version that was set aside to have it back. A running server changes when it loads the model again.

    Examples:
    [bold]tritonbatch rollback ranking_mlp[/]

    [bold]tritonbatch rollback ranking_mlp --to 3[/]
    """
    directory = repository / model
    if not (directory / "config.pbtxt").is_file():
        raise InvalidInput(f"No model {model!r} in {repository}: expected a folder with config.pbtxt; check the name.")
    before = versions.versions(directory)
    served = versions.rollback(directory, to)
    aside = ", ".join(str(version) for version in versions.set_aside(directory)) or "none"
    was = f" (was {before[-1]})" if before[-1] != served else ""
    Console().print(
        f"{model}: version {served} is served{was}; set aside: {aside}. A running Triton takes it up when it loads the "
        "model again.",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )
