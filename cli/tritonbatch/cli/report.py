"""``tritonbatch report``: tables, verdict and page from records that are already there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.options import newest_run
from tritonbatch.cli.show import show_comparison
from tritonbatch.errors import InvalidInput
from tritonbatch.observe.read import read_comparison
from tritonbatch.report.table import markdown_table
from tritonbatch.report.verdict import verdicts


def report(
    folder: Annotated[
        Path | None, typer.Argument(help="The folder that compare or demo left; the newest under runs/ by default.")
    ] = None,
    html: Annotated[Path | None, typer.Option(help="Where to write the page; FOLDER/report.html by default.")] = None,
    markdown: Annotated[  # noqa: FBT002
        bool, typer.Option("--markdown", help="Print the tables and verdicts as Markdown, and write no page.")
    ] = False,
) -> None:
    """Print the tables and the verdict of a comparison again, and rewrite its page. Nothing is measured.

    Example: [bold]tritonbatch report runs/demo-20260131-120000[/]
    """
    chosen = folder or newest_run()
    if not chosen.is_dir():
        raise InvalidInput(f"No folder {chosen}: expected one that `tritonbatch compare` or `demo` left.")
    if markdown:
        measurements = read_comparison(chosen).measurements
        sentences = "".join(f"\n- {verdict.sentence}" for verdict in verdicts(measurements))
        typer.echo(f"{markdown_table(measurements)}{sentences}")
        return
    show_comparison(chosen, html or chosen / "report.html", Console())
