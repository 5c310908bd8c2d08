"""``tritonbatch batch``: every row of a file through a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from tritonbatch.errors import InvalidInput
from tritonbatch.offline import Engine, Estimate, Server, Summary, Watch, plan, run


def batch(
    source: Annotated[
        Path, typer.Argument(metavar="INPUT", help="A .parquet, .jsonl or .npy, or a folder of such part files.")
    ],
    output: Annotated[Path, typer.Argument(help="The .parquet, .jsonl or .npy to write.")],
    model: Annotated[str, typer.Option(help="The model's name on the server.")],
    size: Annotated[int, typer.Option("--batch", help="Rows of every execution; at most max_batch_size.")] = 32,
    url: Annotated[
        list[str] | None, typer.Option(help="HOST:PORT of Triton; repeat for replicas. localhost:8000 by default.")
    ] = None,
    protocol: Annotated[str, typer.Option(help="http or grpc.")] = "http",
    in_flight: Annotated[int, typer.Option(help="Batches under way at once (with ray: of each worker).")] = 2,
    patience_s: Annotated[float, typer.Option(help="Seconds to wait for an answer, or for a server to be back.")] = 300,
    engine: Annotated[str, typer.Option(help="local, or ray to spread the parts over a Ray cluster.")] = "local",
) -> None:
    """Send every row of a file through a model in full batches, and write the results in the same order.

    Columns or keys named as the model's inputs are sent; a column id goes with the results. A run that was stopped, or
    killed, goes on with the same command; a server that goes away is waited for. Items that fail are listed in
    OUTPUT.errors.jsonl, and the exit code is 1.

    Examples:
    [bold]tritonbatch batch items.parquet scores.parquet --model ranking_mlp --batch 32[/]

    [bold]tritonbatch batch texts/ vectors.jsonl --model minilm --url gpu-1:8000 --url gpu-2:8000 --in-flight 4[/]
    """
    server = Server(
        tuple(url or ["localhost:8001" if protocol == "grpc" else "localhost:8000"]),
        "grpc" if protocol == "grpc" else "http",
        in_flight,
        patience_s,
    )
    chosen = _checked(protocol, engine, server)
    console = Console()
    with server.client() as client:
        job, sample = plan(client, source, output, model, size)
    console.print(f"{job.source.rows} rows of {', '.join(job.columns.inputs)} for {model}, version {job.version}")
    with _bar(console) as bar:
        try:
            summary = run(job, sample, server, _watch(bar, console), chosen)
        except (KeyboardInterrupt, SystemExit):
            done = len(job.parts) - len(job.missing)
            bar.print(f"Interrupted: {done} of {len(job.parts)} parts are kept; the same command goes on from there.")
            raise
    _conclude(summary, output, console)


def _checked(protocol: str, engine: str, server: Server) -> Engine:
    if protocol not in {"http", "grpc"}:
        raise InvalidInput(f"The protocol is {protocol!r}: expected http or grpc.")
    if server.in_flight < 1:
        raise InvalidInput(f"--in-flight is {server.in_flight}: expected 1 or more batches under way.")
    if server.patience_s <= 0:
        raise InvalidInput(f"--patience-s is {server.patience_s:g}: expected seconds, more than 0.")
    if engine == "local":
        return "local"
    if engine == "ray":
        return "ray"
    raise InvalidInput(f"The engine is {engine!r}: expected local or ray.")


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def _watch(bar: Progress, console: Console) -> Watch:
    task = bar.add_task("rows", total=None)

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    def planned(estimate: Estimate) -> None:
        if estimate.rows < estimate.of_rows:
            say(f"{estimate.of_rows - estimate.rows} rows are done already")
        say(
            f"{estimate.batches} batches at {estimate.batch_s * 1000:.1f} ms each, one after the other: "
            f"about {estimate.batches * estimate.batch_s:.1f} s"
        )
        bar.update(task, total=estimate.of_rows, completed=estimate.of_rows - estimate.rows)

    last = [""]

    def waiting(text: str) -> None:
        if last[0] != text:
            last[0] = text
            say(f"waiting: {text}")

    return Watch(planned, lambda rows: bar.advance(task, rows), waiting)


def _conclude(summary: Summary, output: Path, console: Console) -> None:
    done = f"{summary.rows - summary.errors} of {summary.rows} rows are in {output}"
    if not summary.errors:
        console.print(done, markup=False, highlight=False, soft_wrap=True)
        return
    text = f"{done}; {summary.errors} failed: see {summary.errors_file}"
    console.print(text, markup=False, highlight=False, soft_wrap=True)
    raise typer.Exit(1)
