"""Progress on the terminal: each step a line with a bar while it runs, and its time when it is done.

Where the output is not a terminal, each step is one plain line as it starts.
"""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn


class Steps:
    """Shows one step at a time; call it as ``steps(what, done, total)``, and a new *what* ends the step before."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._bars = Progress(
            SpinnerColumn(finished_text="[green]✓"),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=console,
            disable=not console.is_terminal,
        )
        self._current: TaskID | None = None
        self._what = ""

    def __enter__(self) -> Self:
        self._bars.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None:
            self._finish()
        self._bars.stop()

    def __call__(self, what: str, done: int, total: int) -> None:
        """Say that *done* of *total* of the step *what* are done."""
        if what != self._what:
            self._finish()
            self._what, self._current = what, self._bars.add_task(what, total=total)
            if not self._console.is_terminal:
                self._console.print(what, markup=False, highlight=False)
        if self._current is not None:
            self._bars.update(self._current, completed=done, total=total)

    def _finish(self) -> None:
        if self._current is not None:
            task = self._bars.tasks[self._bars.task_ids.index(self._current)]
            self._bars.update(self._current, completed=task.total)
        self._current = None
