"""The tables: what stands in them, at the widths that terminals have."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console, RenderableType

from tritonbatch.client.counters import Executions
from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.table import gains_table, markdown_table, numbers, results_tables
from tritonbatch.report.verdict import verdict

if TYPE_CHECKING:
    Sample = Any

TIMES = "\N{MULTIPLICATION SIGN}"


def printed(width: int, *renderables: RenderableType) -> str:
    """What a terminal of *width* columns shows."""
    console = Console(width=width, record=True, file=StringIO())
    for renderable in renderables:
        console.print(renderable)
    return console.export_text()


def joined(text: str) -> str:
    """*text* with its white space collapsed."""
    return " ".join(text.split())


@pytest.mark.parametrize("width", [80, 100, 120])
def test_fits_and_is_complete(sample: Sample, width: int) -> None:
    """At every usual width each number is whole and no line is longer than the terminal."""
    text = printed(width, *results_tables(sample.measurements))
    assert max(len(line) for line in text.splitlines()) <= width
    assert "\N{HORIZONTAL ELLIPSIS}" not in text
    for m in sample.measurements:
        assert all(cell in text for cell in numbers(m))
    assert text.count("open loop") == 4
    assert f"32{TIMES}68" in text


def test_executions_move_below_a_narrow_table(sample: Sample) -> None:
    """On 80 columns the executions follow the table, with the run that they belong to."""
    narrow, wide = (printed(width, *results_tables(sample.measurements)) for width in (80, 120))
    assert f"saturating static  32{TIMES}" in narrow
    assert "saturating static  32" not in wide


@pytest.mark.parametrize("width", [80, 120])
def test_failures_stand_beside_percentiles(helped: list[Measurement], width: int) -> None:
    """The row of a failing run shows how many requests failed, and the kinds are given."""
    failing = [*helped[:-1], replace(helped[-1], errors={"rejected": 150, "timeout": 50})]
    text = printed(width, *results_tables(failing))
    row = next(line for line in text.splitlines() if "dynamic" in line and "1,900" in line)
    assert "200 (1.0%" in row
    kinds = {word.strip("(,:)") for word in text.split()}
    assert {"150", "rejected", "50", "timeout"} <= kinds


def test_many_sizes_are_cut_and_counted(helped: list[Measurement]) -> None:
    """Of many batch sizes the most frequent are shown, and how many were left out."""
    executions = tuple(Executions(batch_size=b, count=b, occupancy_ms=1.0) for b in range(1, 11))
    text = markdown_table([replace(helped[0], executions=executions)])
    assert f"6{TIMES}6 7{TIMES}7 8{TIMES}8 9{TIMES}9 10{TIMES}10 +5 sizes" in text


def test_missing_numbers_are_dashes(helped: list[Measurement]) -> None:
    """A number that was not measured is a dash, never nan."""
    text = printed(120, *results_tables([replace(m, executions=()) for m in helped]))
    assert "nan" not in text
    assert "\N{EN DASH}" in text


def test_terminal_markup_is_shown(helped: list[Measurement]) -> None:
    """Names are never read as the terminal library's markup."""
    hostile = [replace(m, model="[red]m[/red]", variant=f"[b]{m.variant}") for m in helped]
    text = printed(120, *results_tables(hostile))
    assert "[red]m[/red]" in text
    assert "[b]serial" in text


def test_markdown(helped: list[Measurement]) -> None:
    """Every row of the Markdown table has the cells of its head, whatever the names contain."""
    text = markdown_table([replace(m, model="<b>|m`*", variant="a|b\nc") for m in helped])
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 2 + len(helped)
    assert {line.replace("\\|", "").count("|") for line in rows} == {11}
    assert "<b>" not in text
    assert "| 1,900 | 2,000 | 3,600 | 4,000 | 4,000 | 31.6 |" in text


def test_gains_table(not_helped: list[Measurement]) -> None:
    """The gain table shows t(B), its ratio, the rate and the factor."""
    rows = [joined(line) for line in printed(100, gains_table(verdict(not_helped))).splitlines()]
    assert "16 2,500 167 15.2 95.8 1.1" in rows
