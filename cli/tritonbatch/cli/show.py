"""What a comparison ends with, on the terminal and as a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pyarrow.parquet import read_table
from rich.console import Console

from tritonbatch.loadtest.folder import read_json, run_folder
from tritonbatch.loadtest.mixes import classes
from tritonbatch.loadtest.records import Records
from tritonbatch.observe.join import join, with_rows
from tritonbatch.observe.read import configuration_of, read_comparison, statistics_of
from tritonbatch.observe.split import Means, instance_count, means_from_statistics, means_of, split
from tritonbatch.observe.trace import read_trace_table
from tritonbatch.report.page import write_page
from tritonbatch.report.repeats import repeats_table
from tritonbatch.report.run_notes import pending_note, run_notes
from tritonbatch.report.table import gains_table, results_tables
from tritonbatch.report.verdict import verdicts
from tritonbatch.report.wording import by_model


def show_comparison(folder: Path, page: Path, console: Console) -> None:
    """Print the tables and the verdicts of the comparison in *folder*, and write *page*.

    Raises:
        InvalidInput: the folder is not a comparison, or holds no finished run.
    """
    comparison = read_comparison(folder)
    found = verdicts(comparison.measurements)
    if not comparison.manifest.get("complete"):
        console.print("[yellow]This comparison did not finish: only the runs that did are shown.[/]")
    for table, verdict in zip(results_tables(comparison.measurements), found, strict=True):
        console.print()
        console.print(table)
        console.print(verdict.sentence, style="bold", markup=False, highlight=False)
        console.print(gains_table(verdict))
    page.parent.mkdir(parents=True, exist_ok=True)
    write_page(
        page,
        measurements=comparison.measurements,
        records=comparison.records,
        manifest=comparison.manifest,
        verdicts=found,
    )
    console.print(f"\nPage     {page}\nRecords  {folder / 'runs'}", highlight=False, soft_wrap=True)


def show_runs(folder: Path, console: Console) -> None:
    """Print what the runs of a load in *folder* showed, and what must be known to read it.

    Raises:
        InvalidInput: the folder holds no finished run.
    """
    comparison = read_comparison(folder)
    for table in results_tables(comparison.measurements):
        console.print(table)
    text = str(comparison.manifest.get("classes") or "")
    for measurement in comparison.measurements:
        run = run_folder(folder, measurement.model, measurement.load.name, measurement.variant)
        records = comparison.records[measurement.model, measurement.load.name, measurement.variant]
        means = _means(run, records)
        generator = read_json(run / "records.json")
        for note in run_notes(measurement, records, generator, means, classes(text) if text else None):
            console.print(f"- {note}", markup=False, highlight=False)
        if (run / "metrics.parquet").exists():
            pending = read_table(run / "metrics.parquet")["pending"].to_numpy()
            console.print(f"- {pending_note(pending)}", markup=False, highlight=False)
    console.print(f"\nRecords  {folder / 'runs'}", highlight=False, soft_wrap=True)


def show_repeats(folders: Sequence[Path], console: Console) -> None:
    """Print what the repeats of a comparison showed together.

    Raises:
        InvalidInput: one of *folders* is no comparison, or holds no finished run.
    """
    repeats = [read_comparison(folder).measurements for folder in folders]
    for model in by_model(repeats[0]):
        console.print(repeats_table(model, repeats))
    console.print(f"\nEach repeat is a comparison of its own: tritonbatch report {folders[0]}", soft_wrap=True)


def _means(run: Path, records: Records) -> Means:
    """By the trace where one was taken, request by request; else by the server's statistics."""
    if not (run / "trace.parquet").exists():
        return means_from_statistics(records, *statistics_of(run))
    trace = read_trace_table(run / "trace.parquet")
    joined = join(records, trace)
    return means_of(split(records, with_rows(trace, records, joined), joined, instance_count(configuration_of(run))))
