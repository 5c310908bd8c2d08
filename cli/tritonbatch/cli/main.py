"""``tritonbatch VERB …``: the entry point, and the one place where errors become a sentence and an exit code.

Exit codes: 0 done; 1 it failed (the server, a model's verification); 2 a mistake in what was given, or something
missing on this machine; 130 interrupted.
"""

from __future__ import annotations

import signal
import sys
from types import FrameType

import typer
from rich.console import Console

from tritonbatch.cli import (
    batch,
    compare,
    demo,
    diff,
    export,
    gate,
    lint,
    load,
    max_rate,
    report,
    rollback,
    serve,
    tensorrt_verb,
)
from tritonbatch.errors import TritonbatchError

app = typer.Typer(
    name="tritonbatch",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help=(
        "Batching as a lever on throughput under a latency objective, for NVIDIA Triton Inference Server.\n\n"
        "The verbs follow the work: [bold]export[/] a model into a repository of configuration variants, "
        "[bold]lint[/] them, [bold]serve[/] one on the real Triton, [bold]compare[/] them under the same arrivals, "
        "[bold]report[/] what was seen. [bold]demo[/] does all of it on two real models."
    ),
    epilog="Exit codes: 0 done, 1 failed, 2 a mistake in what was given or something missing here, 130 interrupted.",
)
app.command(name="export")(export.export)
app.command(name="rollback")(rollback.rollback)
app.command(name="lint")(lint.lint)
app.command(name="diff")(diff.diff)
app.command(name="tensorrt")(tensorrt_verb.tensorrt)
app.command(name="serve")(serve.serve)
app.command(name="compare")(compare.compare)
app.command(name="load")(load.load)
app.command(name="max-rate")(max_rate.max_rate)
app.command(name="gate")(gate.gate)
app.command(name="report")(report.report)
app.command(name="batch")(batch.batch)
app.command(name="demo")(demo.demo)


def main() -> None:
    """Run the command line; never returns."""
    signal.signal(signal.SIGTERM, _terminate)
    errors = Console(stderr=True)
    try:
        app()
    except TritonbatchError as error:
        errors.print("[bold red]error:[/]", end=" ")
        errors.print(str(error), markup=False, highlight=False, soft_wrap=True)
        sys.exit(error.exit_code)
    except OSError as error:
        # Disk full, no permission, a folder gone: its name and the reason are all there is to say.
        errors.print("[bold red]error:[/]", end=" ")
        about = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        errors.print(f"{about}; free space or choose another place.", markup=False, highlight=False, soft_wrap=True)
        sys.exit(2)


def _terminate(number: int, frame: FrameType | None) -> None:  # noqa: ARG001 - the signature of a handler
    # As an exception, so that every `with` block on the way out stops what it started.
    sys.exit(128 + number)


if __name__ == "__main__":
    main()
