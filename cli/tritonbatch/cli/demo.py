"""``tritonbatch demo``: from two models to a verdict in one command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.compare import VARIANTS, local_subjects, run_comparison
from tritonbatch.cli.export import Batching, export_one
from tritonbatch.cli.options import DEFAULT_REPOSITORY, names, new_run_folder
from tritonbatch.cli.steps import Steps
from tritonbatch.loadtest.compare import Traffic
from tritonbatch.loadtest.serving import embedded

# The ranking model reads 76 MB of weights per execution whatever the batch, so a large batch costs little more; the
# encoder computes in proportion to its rows, so a large batch would only make everyone wait.
MODELS = {
    "ranking_mlp": Batching(max_batch_size=64, static_batch=32),
    "minilm": Batching(max_batch_size=16, static_batch=8),
}


def demo(
    repository: Annotated[Path, typer.Option(help="The model repository to write to.")] = DEFAULT_REPOSITORY,
    output: Annotated[
        Path | None, typer.Option(help="Where to leave records and page; runs/demo-… by default.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="About how long the longest run takes.")] = 5.0,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 1,
) -> None:
    """Export two real models, serve serial, static and dynamic, load each, and say which to use for what.

    The two are a wide ranking model, which batching helps, and a sentence encoder, which it hardly helps on a CPU. A
    second run rebuilds nothing that did not change.
    """
    console = Console()
    with Steps(console) as steps:
        reports = [
            export_one(model, repository, None, batching, lambda what: steps(what, 0, 1))
            for model, batching in MODELS.items()
        ]
    for report in reports:
        console.print(report, markup=False, highlight=False, soft_wrap=True)
    subjects = local_subjects(repository, list(MODELS), None)
    serving = embedded(repository, list(MODELS), "http")
    traffic = Traffic(seconds=seconds, seed=seed)
    run_comparison(output or new_run_folder("demo"), serving, subjects, names(VARIANTS, "variants"), traffic, console)
