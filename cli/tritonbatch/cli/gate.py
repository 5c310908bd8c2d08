"""``tritonbatch gate``: fail a pipeline when a model became slower, and only then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.folder import write_json
from tritonbatch.observe import gate as decision
from tritonbatch.observe.baseline import Run, check_comparable, read_baseline, read_runs, summary, write_baseline
from tritonbatch.observe.gate_output import cells, junit, markdown, plain, write_text
from tritonbatch.observe.judge import check
from tritonbatch.observe.slo import Objective
from tritonbatch.observe.slo import slo as read_slo

STYLES = {"regression": "bold red", "missed": "bold red", "undecided": "yellow", "improved": "green", "met": "green"}


def gate(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN…", help="Folders with records: repeats of one run.")],
    baseline: Annotated[Path | None, typer.Option(help="Compare with this baseline.")] = None,
    save_baseline: Annotated[Path | None, typer.Option(help="Write the runs as a baseline to this file.")] = None,
    slo: Annotated[str | None, typer.Option(help="Objectives to hold: p99=20ms,errors=0.1%.")] = None,
    min_rate: Annotated[float | None, typer.Option(help="Least throughput, requests per second.")] = None,
    min_effect: Annotated[
        float, typer.Option(help="Smallest change of latency or throughput that counts, in percent.")
    ] = 100 * decision.LEAST_EFFECT,
    junit_file: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML here.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the findings as JSON here.")] = None,
    markdown_file: Annotated[Path | None, typer.Option("--markdown", help="Write a Markdown summary here.")] = None,
) -> None:
    """Compare repeats of a run with a baseline, knowing the noise between repeats, and hold them to objectives.

    Exits with 1 on a regression (the 95 % interval of the change excludes none, and it is larger than --min-effect) or
    a missed objective, else with 0; what is undecided is said and passes. Repeat runs five times each.

    Examples:
    [bold]tritonbatch gate runs/main-* --save-baseline baseline.json[/]

    [bold]tritonbatch gate runs/pr-* --baseline baseline.json --slo p99=20ms --junit gate.xml[/]
    """
    if baseline is None and save_baseline is None and slo is None and min_rate is None:
        raise InvalidInput("There is nothing to do: expected --baseline, --save-baseline, --slo or --min-rate.")
    _check_numbers(min_rate, min_effect)
    objectives = read_slo(slo) if slo else ()
    console = Console()
    candidate = read_runs(runs)
    result = judged(candidate, baseline, objectives, min_rate, min_effect / 100)
    if save_baseline is not None:
        write_baseline(save_baseline, [summary(run) for run in candidate])
        console.print(
            f"Baseline of {len(candidate)} runs: {save_baseline}", markup=False, highlight=False, soft_wrap=True
        )
    if not result.findings:
        return
    facts = candidate[0].facts
    subject = f"{facts['model']} {facts['variant']}"
    _show(console, result)
    if junit_file:
        write_text(junit_file, junit(result, subject))
    if json_file:
        json_file.parent.mkdir(parents=True, exist_ok=True)
        write_json(json_file, plain(result, subject))
    if markdown_file:
        write_text(markdown_file, markdown(result, subject))
    if not result.passed:
        raise typer.Exit(1)


def judged(
    candidate: Sequence[Run],
    baseline: Path | None,
    objectives: Sequence[Objective],
    min_rate: float | None,
    least_effect: float,
) -> decision.Result:
    """Everything that was asked about the runs of *candidate*.

    Raises:
        InvalidInput: the baseline cannot be read, or is of another model or load.
    """
    after, before = [summary(run) for run in candidate], read_baseline(baseline) if baseline else []
    findings: list[decision.Finding] = []
    if before:
        check_comparable([before[0].facts, after[0].facts], [str(baseline), after[0].name])
        findings += decision.changes(before, after, least_effect)
    findings += [decision.objective_finding(check([run.records for run in candidate], each)) for each in objectives]
    if min_rate is not None:
        findings.append(decision.rate_finding(after, min_rate))
    return decision.Result(tuple(findings), tuple(decision.notes(before, after)))


def _check_numbers(min_rate: float | None, min_effect: float) -> None:
    if min_rate is not None and not 0 < min_rate < math.inf:
        raise InvalidInput(f"--min-rate is {min_rate:g}: expected a number above 0.")
    if not 0 <= min_effect < math.inf:
        raise InvalidInput(f"--min-effect is {min_effect:g}: expected 0 or more percent.")


def _show(console: Console, result: decision.Result) -> None:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("finding", "outcome", "before", "after", "change", "95 %"):
        table.add_column(name, overflow="fold", justify="left" if name in {"finding", "outcome"} else "right")
    for finding in result.findings:
        outcome = Text(finding.outcome, style=STYLES.get(finding.outcome, ""))
        table.add_row(Text(finding.name), outcome, *map(Text, cells(finding)))
    console.print(table)
    for finding in result.findings:
        if finding.outcome not in {"unchanged", "improved"}:
            console.print(finding.sentence, markup=False, highlight=False)
    for note in result.notes:
        console.print(note, style="yellow", markup=False, highlight=False)
    console.print(result.sentence, style="bold" if result.passed else "bold red", markup=False, highlight=False)
