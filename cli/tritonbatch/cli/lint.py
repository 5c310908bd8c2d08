"""``tritonbatch lint``: what Triton would refuse, ignore or surprise with, found without a server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from tritonbatch.cli.options import DEFAULT_REPOSITORY
from tritonbatch.errors import InvalidInput
from tritonbatch.lint.finding import Finding
from tritonbatch.lint.formats import as_json, as_sarif, as_text
from tritonbatch.lint.linter import chosen_models, errors_in, lint_repository
from tritonbatch.lint.repair import repairs


class Format(StrEnum):
    """How findings are printed."""

    TEXT = "text"
    JSON = "json"
    SARIF = "sarif"


WRITERS: dict[Format, Callable[[Sequence[Finding]], str]] = {
    Format.TEXT: as_text,
    Format.JSON: as_json,
    Format.SARIF: as_sarif,
}


def lint(
    repository: Annotated[Path, typer.Argument(help="The model repository.")] = DEFAULT_REPOSITORY,
    models: Annotated[list[str] | None, typer.Argument(help="Only these models; all by default.")] = None,
    output: Annotated[Format, typer.Option("--format", help="How to print the findings.")] = Format.TEXT,
    fix: Annotated[  # noqa: FBT002
        bool, typer.Option("--fix", help="Repair what cannot change the meaning, and keep the old file as .bak.")
    ] = False,
    deadline_ms: Annotated[
        float, typer.Option(help="Within how many ms callers want an answer; 0 when unknown.", min=0)
    ] = 0.0,
) -> None:
    """Check every config.pbtxt and its variants against Triton's rules and the ONNX graph. Starts no server.

    Exits with 1 when there is an error, with 0 when there are only warnings.

    Example: [bold]tritonbatch lint model_repository --fix[/]
    """
    names = models or []
    if fix:
        _fix(repository, names, show=output is Format.TEXT)
    findings = lint_repository(repository, names, deadline_us=round(deadline_ms * 1000))
    typer.echo(WRITERS[output](findings))
    if any(errors_in(findings)):
        raise typer.Exit(1)


def _fix(repository: Path, names: Sequence[str], *, show: bool) -> None:
    for model in chosen_models(repository, names):
        for repaired in repairs(model):
            try:
                repaired.write()
            except OSError as error:
                raise InvalidInput(f"Cannot write {repaired.file}: {error.strerror}; make it writable.") from error
            if show:
                typer.echo(
                    f"{repaired.diff}repaired {', '.join(repaired.rules)}; the old file is {repaired.file}.bak\n"
                )
