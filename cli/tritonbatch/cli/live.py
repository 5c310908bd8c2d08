"""A run on the terminal while it runs: a table that changes in place, or a line every few seconds where it cannot."""

from __future__ import annotations

import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tritonbatch.client import Client
from tritonbatch.client.counters import executions_between
from tritonbatch.errors import RequestFailed
from tritonbatch.loadtest.drive import SATURATED_LAG_MS
from tritonbatch.loadtest.generator import Drive
from tritonbatch.loadtest.plan import Load

SERVER_S = 1.0
LINE_S = 5.0
COLUMNS = ("finished", "rate /s", "p50 ms", "p95 ms", "p99 ms", "mean batch", "outstanding", "lag ms", "failed")


class Watching:
    """Shows what the generator tells, and the mean batch that the server counts; call it with each snapshot."""

    def __init__(self, console: Console, client: Client, drive: Drive, load: Load) -> None:
        self._console, self._client, self._model = console, client, drive.model
        self._title = f"{drive.model} at {drive.url}: {drive.pattern or load.process}"
        self._live = Live(console=console, refresh_per_second=4, transient=True)
        self._statistics = None if not client.ready() else client.statistics(drive.model)
        self._batch = float("nan")
        self._asked = self._said = time.monotonic()

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        else:
            self._console.print(self._title, markup=False, highlight=False)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.stop()

    def __call__(self, snapshot: Mapping[str, float]) -> None:
        """Show *snapshot* (see tritonbatch.loadtest.live)."""
        self._ask_server()
        if self._console.is_terminal:
            self._live.update(live_table(self._title, snapshot, self._batch))
        elif time.monotonic() - self._said >= LINE_S:
            self._said = time.monotonic()
            cells = zip(COLUMNS, cells_of(snapshot, self._batch), strict=True)
            self._console.print(", ".join(f"{name} {cell}" for name, cell in cells), markup=False, highlight=False)

    def _ask_server(self) -> None:
        if self._statistics is None or time.monotonic() - self._asked < SERVER_S:
            return
        self._asked = time.monotonic()
        try:
            now = self._client.statistics(self._model)
        except RequestFailed:
            return  # the generator says what fails; this is only a view
        executions = executions_between(self._statistics, now)
        count = sum(each.count for each in executions)
        self._batch = sum(each.batch_size * each.count for each in executions) / count if count else float("nan")


def live_table(title: str, snapshot: Mapping[str, float], mean_batch: float) -> Table:
    """The table of one moment; percentiles are since the start, and Locust's rounding is in them."""
    table = Table(title=Text(title), title_justify="left", caption=caption(snapshot), caption_justify="left")
    for name in COLUMNS:
        table.add_column(name, justify="right")
    *cells, failed = cells_of(snapshot, mean_batch)
    table.add_row(*cells, Text(failed, style="bold red" if snapshot["failed"] else "green"))
    return table


def cells_of(snapshot: Mapping[str, float], mean_batch: float) -> list[str]:
    """The cells under COLUMNS."""
    batch = "-" if mean_batch != mean_batch else f"{mean_batch:.1f}"  # noqa: PLR0124 - NaN
    return [
        f"{snapshot['finished']:,.0f}",
        f"{snapshot['rate_per_s']:,.0f}",
        *(f"{snapshot[f'p{quantile}_ms']:,.0f}" for quantile in (50, 95, 99)),
        batch,
        f"{snapshot['outstanding']:,.0f}",
        f"{snapshot['lag_ms']:.1f}",
        f"{snapshot['failed']:,.0f}",
    ]


def caption(snapshot: Mapping[str, float]) -> Text:
    """Whether the generator keeps up."""
    if snapshot["cap_waits"]:
        return Text(f"generator saturated: {snapshot['cap_waits']:,.0f} requests waited at the cap", style="bold red")
    if snapshot["lag_ms"] > SATURATED_LAG_MS:
        return Text(f"generator saturated: {snapshot['lag_ms']:.0f} ms behind its schedule", style="bold red")
    return Text("latency since the start, from the intended start of each request", style="dim")
