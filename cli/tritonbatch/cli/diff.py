"""``tritonbatch diff``: what two configurations mean differently, whatever their text looks like."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tritonbatch.errors import InvalidInput
from tritonbatch.lint.compare import differences, normalised
from tritonbatch.lint.linter import CONFIG, subject_of
from tritonbatch.lint.subject import Subject
from tritonbatch.repository.config import read_config

OTHER_FOLDERS = ("configs",)


def diff(
    left: Annotated[Path, typer.Argument(help="A config.pbtxt, a variant, or a model's directory.")],
    right: Annotated[Path, typer.Argument(help="Another one.")],
) -> None:
    """Print what two configurations differ in, field by field, once all defaults are written out.

    Exits with 0 when they mean the same, with 1 when they differ. The name is left out: it is the directory's.

    Example: [bold]tritonbatch diff models/ranker/configs/static.pbtxt models/ranker[/]
    """
    found = differences(normalised(_subject(left)), normalised(_subject(right)))
    if not found:
        typer.echo(f"{left} and {right} mean the same.")
        return
    typer.echo(f"{left} | {right}")
    for each in found:
        typer.echo(f"{each.field}: {each.left} | {each.right}")
    raise typer.Exit(1)


def _subject(path: Path) -> Subject:
    file = path / CONFIG if path.is_dir() else path
    if not file.is_file():
        raise InvalidInput(
            f"No configuration at {file}: expected a config.pbtxt or a model's directory; correct the path."
        )
    folder = file.resolve().parent
    model = folder.parent if folder.name in OTHER_FOLDERS else folder
    return subject_of(file, model, read_config(file))
