"""``tritonbatch load``: one load on a running Triton, watched live, with the server's truth beside it."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.live import Watching
from tritonbatch.cli.options import new_run_folder
from tritonbatch.cli.show import show_runs
from tritonbatch.client import Client, Protocol, Unreachable
from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.folder import run_folder, write_json
from tritonbatch.loadtest.generator import Drive
from tritonbatch.loadtest.one_run import load_of, one_run, run_manifest
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.tracing import traced
from tritonbatch.observe.pending import sampling, write_readings
from tritonbatch.observe.trace import read_trace, write_trace

PATTERN = "poisson:rate=100,seconds=10"


def load(
    model: Annotated[str, typer.Option(help="The model's name on the server.")],
    url: Annotated[str, typer.Option(help="HOST:PORT of Triton.")] = "localhost:8000",
    pattern: Annotated[
        str,
        typer.Option(
            help="When requests arrive: constant, poisson, onoff, mmpp, ramp, step, sine, trace:FILE; "
            "or a closed loop, closed:users=16,seconds=10."
        ),
    ] = PATTERN,
    protocol: Annotated[str, typer.Option(help="http or grpc.")] = "http",
    processes: Annotated[int, typer.Option(help="Locust workers on this machine that share the load.")] = 1,
    mix: Annotated[str, typer.Option(help="Sizes of requests and their shares, as 1:0.8,8:0.2.")] = "",
    classes: Annotated[str, typer.Option(help="Priorities and shares, as interactive=1:0.7,bulk=2:0.3.")] = "",
    client_batch: Annotated[int, typer.Option(help="Static batching: send full batches of this size.")] = 1,
    samples: Annotated[
        Path | None, typer.Option(help="An .npz or .jsonl with rows for every input; random by default.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of arrivals, sizes and priorities.")] = 1,
    repeats: Annotated[int, typer.Option(help="How many runs; their spread is the noise.")] = 1,
    trace: Annotated[  # noqa: FBT002
        bool,
        typer.Option(
            "--trace",
            help="Split each latency by Triton's own trace, which costs some speed; the server must have a trace file.",
        ),
    ] = False,
    metrics_url: Annotated[
        str, typer.Option(help="http://HOST:PORT/metrics of Triton: its pending count and failures are kept as well.")
    ] = "",
    output: Annotated[Path | None, typer.Option(help="Where to leave the records; runs/… by default.")] = None,
) -> None:
    """Load a running Triton, open or closed loop, and report what its clients and its server saw.

    Latency counts from the intended start of each request. The folder left behind is what `tritonbatch report` and
    `tritonbatch gate` read.

    Examples:
    [bold]tritonbatch load --model ranking_mlp --pattern poisson:rate=500,seconds=30[/]

    [bold]tritonbatch load --url gpu-1:8001 --protocol grpc --model resnet50 --pattern ramp:from=50,to=800,seconds=60[/]
    """
    drive = _checked(model, url, protocol, processes, client_batch)
    drive = dataclasses.replace(drive, pattern=pattern, mix=mix, classes=classes, samples=samples)
    if repeats < 1:
        raise InvalidInput(f"--repeats is {repeats}: expected 1 or more.")
    names = ["load"] if repeats == 1 else [f"load {number}" for number in range(1, repeats + 1)]
    planned = [load_of(pattern, name, seed + number) for number, name in enumerate(names)]
    folder, console = output or new_run_folder("load"), Console()
    if (folder / "manifest.json").exists():
        raise InvalidInput(f"{folder} already holds a run: expected a new or empty folder; choose another.")
    _play(folder, drive, planned, console, metrics_url, trace=trace)
    show_runs(folder, console)


def _play(
    folder: Path, drive: Drive, planned: Sequence[Load], console: Console, metrics_url: str, *, trace: bool
) -> None:
    """Play every load and leave its records in *folder*."""
    model, protocol = drive.model, drive_protocol(drive.protocol)
    with Client(drive.url, protocol=protocol) as client:
        if not client.ready():
            raise Unreachable(f"No Triton is ready at {drive.url} over {protocol}: check address, port and protocol.")
        if not client.ready(model):
            raise InvalidInput(
                f"Model {model} is not ready at {drive.url}: expected one that is loaded; check its name."
            )
        folder.mkdir(parents=True, exist_ok=True)
        manifest = {
            **run_manifest(planned[0].seed, protocol),
            "server": client.server_metadata(),
            "variants": [drive.variant],
            "subjects": [{"model": model, "samples": str(drive.samples) if drive.samples else None}],
            "classes": drive.classes,
        }
        write_json(folder / "manifest.json", manifest)
        for each in planned:
            run = run_folder(folder, model, each.name, drive.variant)
            with Watching(console, client, drive, each) as watching, _metrics(metrics_url, model, run):
                (_traced_run if trace else one_run)(run, client, drive, each, watching)
        write_json(folder / "manifest.json", {**manifest, "complete": True})


@contextmanager
def _metrics(url: str, model: str, run: Path) -> Iterator[None]:
    """Keep what the metrics endpoint says during a run as ``metrics.parquet`` beside the records."""
    if not url:
        yield
        return
    with sampling(url, model) as readings:
        yield
    write_readings(readings, run / "metrics.parquet")


def _traced_run(run: Path, client: Client, drive: Drive, load: Load, watching: Watching) -> None:
    """A run whose requests carry ids, with the server's trace of them as ``trace.parquet`` beside the records."""
    with traced(client.url, client.protocol, drive.model) as tracing:
        one_run(run, client, dataclasses.replace(drive, request_ids=f"run{secrets.token_hex(4)}"), load, watching)
    if not tracing.files:
        raise InvalidInput(
            f"The server wrote its trace to {tracing.file} on another host: expected one on this host; run the load "
            "there, or copy it here and read it with tritonbatch.observe."
        )
    write_trace(read_trace(tracing.files), run / "trace.parquet")


def drive_protocol(protocol: str) -> Protocol:
    """*protocol* checked.

    Raises:
        InvalidInput: it is neither.
    """
    if protocol not in {"http", "grpc"}:
        raise InvalidInput(f"The protocol is {protocol!r}: expected http or grpc.")
    return "grpc" if protocol == "grpc" else "http"


def _checked(model: str, url: str, protocol: str, processes: int, client_batch: int) -> Drive:
    drive_protocol(protocol)
    for flag, number in (("--processes", processes), ("--client-batch", client_batch)):
        if number < 1:
            raise InvalidInput(f"{flag} is {number}: expected 1 or more.")
    return Drive(
        url=url,
        protocol=protocol,
        model=model,
        variant="served",
        client_batch=client_batch,
        samples=None,
        processes=processes,
    )
