"""What a comparison ends with, on the terminal and as a page."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from tritonbatch.observe.read import read_comparison
from tritonbatch.report.page import write_page
from tritonbatch.report.table import gains_table, results_tables
from tritonbatch.report.verdict import verdicts


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
