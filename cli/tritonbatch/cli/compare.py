"""``tritonbatch compare``: the same arrivals for every variant."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.options import DEFAULT_REPOSITORY, names, new_run_folder
from tritonbatch.cli.show import show_comparison, show_repeats
from tritonbatch.cli.steps import Steps
from tritonbatch.client import Client, Protocol, Unreachable
from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest import compare as comparison
from tritonbatch.loadtest.serving import Serving, embedded, running
from tritonbatch.repository.layout import models_in, variant_config

VARIANTS = "serial,static,dynamic"


def compare(
    repository: Annotated[Path, typer.Argument(help="The model repository.")] = DEFAULT_REPOSITORY,
    model: Annotated[
        list[str] | None, typer.Option(help="A model to compare; repeat for several. All by default.")
    ] = None,
    variants: Annotated[str, typer.Option(help="Variants, comma-separated; each is configs/VARIANT.pbtxt.")] = VARIANTS,
    url: Annotated[
        str | None, typer.Option(help="Load the Triton at HOST:PORT, as it is configured, instead of an embedded one.")
    ] = None,
    static_batch: Annotated[
        int | None, typer.Option(help="With --url: also send client-side batches of this size.")
    ] = None,
    samples: Annotated[
        Path | None, typer.Option(help="An .npz with rows for every input; MODEL/samples.npz or random by default.")
    ] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(
            help="Arrivals per second; repeat for several. By default one that serial carries, one above all."
        ),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Length of a run.")] = 8.0,
    seed: Annotated[int, typer.Option(help="Seed of the arrivals.")] = 1,
    protocol: Annotated[str, typer.Option(help="http or grpc.")] = "http",
    repeats: Annotated[
        int, typer.Option(help="Play everything so many times, interleaved, to tell the differences from the noise.")
    ] = 1,
    output: Annotated[Path | None, typer.Option(help="Where to leave records and page; runs/… by default.")] = None,
) -> None:
    """Drive variants under the same seeded open-loop arrivals and say which one to use for which traffic.

    Latency counts from the intended start. Every variant gets an embedded Triton of its own; with --url the server
    that runs there is driven as it is ("served"), and with --static-batch by full client-side batches too.

    Examples:
    [bold]tritonbatch compare model_repository --model ranking_mlp --rate 200 --rate 1500[/]

    [bold]tritonbatch compare --url gpu-box:8000 --model resnet --samples images.npz --static-batch 16[/]
    """
    if protocol not in {"http", "grpc"}:
        raise InvalidInput(f"The protocol is {protocol!r}: expected http or grpc.")
    if repeats < 1:
        raise InvalidInput(f"--repeats is {repeats}: expected 1 or more.")
    traffic = comparison.Traffic(
        rates_per_s=rate or (), seconds=seconds, seed=seed, protocol="grpc" if protocol == "grpc" else "http"
    )
    if url:
        subjects, chosen = remote_subjects(url, traffic, model or [], static_batch, samples)
        serving = running(url, traffic.protocol)
    else:
        subjects, chosen = (
            local_subjects(repository, model or models_in(repository), samples),
            names(variants, "variants"),
        )
        serving = _served(repository, subjects, chosen, traffic.protocol)
    folder = output or new_run_folder("compare")
    if repeats == 1:
        run_comparison(folder, serving, subjects, chosen, traffic, Console())
    else:
        repeat_comparison([folder / f"repeat-{n}" for n in range(1, repeats + 1)], serving, subjects, chosen, traffic)


def _served(
    repository: Path, subjects: Sequence[comparison.Subject], variants: Sequence[str], protocol: Protocol
) -> Serving:
    """An embedded server for each variant, all of which every model must have."""
    for subject in subjects:
        for variant in variants:
            variant_config(repository, subject.model, variant)
    return embedded(repository, [subject.model for subject in subjects], protocol)


def repeat_comparison(
    folders: Sequence[Path],
    serving: Serving,
    subjects: Sequence[comparison.Subject],
    variants: Sequence[str],
    traffic: comparison.Traffic,
) -> None:
    """Compare once for each of *folders*, with the same loads, every second time in the opposite order."""
    console = Console()
    with Steps(console) as steps:
        for number, folder in enumerate(folders):
            if number:
                traffic = dataclasses.replace(traffic, loads=comparison.loads_of(folders[0]))
            order = list(reversed(variants)) if number % 2 else list(variants)
            steps(f"repeat {number + 1} of {len(folders)}", 0, 1)
            comparison.compare(folder, serving, subjects, order, traffic, steps)
    show_repeats(folders, console)


def run_comparison(
    folder: Path,
    serving: Serving,
    subjects: Sequence[comparison.Subject],
    variants: Sequence[str],
    traffic: comparison.Traffic,
    console: Console,
) -> None:
    """Compare with progress on *console*, then print the result and write ``report.html`` into *folder*."""
    with Steps(console) as steps:
        comparison.compare(folder, serving, subjects, variants, traffic, steps)
    show_comparison(folder, folder / "report.html", console)


def local_subjects(repository: Path, models: Sequence[str], samples: Path | None) -> list[comparison.Subject]:
    """The models of *repository* with the samples that their export left.

    Raises:
        InvalidInput: there is no model.
    """
    if not models:
        raise InvalidInput(f"No model with variants in {repository}: run `tritonbatch export` first.")
    return [
        comparison.Subject(
            model=model,
            samples=samples or _samples(repository, model),
        )
        for model in models
    ]


def _samples(repository: Path, model: str) -> Path | None:
    path = repository / model / "samples.npz"
    return path if path.exists() else None


def remote_subjects(
    url: str,
    traffic: comparison.Traffic,
    models: Sequence[str],
    static_batch: int | None,
    samples: Path | None,
) -> tuple[list[comparison.Subject], list[str]]:
    """The models at *url*, and the ways to drive them: ``served``, and ``static-B`` when a batch size is given.

    Raises:
        Unreachable: no server is ready there.
        InvalidInput: no model was named, or the batch size is not one that the model takes.
    """
    if not models:
        raise InvalidInput("With --url the models must be named: expected at least one --model NAME.")
    with Client(url, protocol=traffic.protocol) as client:
        if not client.ready():
            raise Unreachable(f"No Triton is ready at {url} over {traffic.protocol}: check address, port and protocol.")
        largest = {model: int(client.config(model).max_batch_size) for model in models}
    for model, size in largest.items():
        if static_batch is not None and not 2 <= static_batch <= size:
            raise InvalidInput(
                f"--static-batch is {static_batch}: expected 2 to {size}, the max_batch_size of {model}."
            )
    subjects = [comparison.Subject(model=model, samples=samples) for model in models]
    return subjects, [*([f"static-{static_batch}"] if static_batch else []), "served"]
