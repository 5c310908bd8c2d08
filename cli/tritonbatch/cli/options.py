"""Defaults and small readers that several verbs share."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from tritonbatch.errors import InvalidInput

DEFAULT_REPOSITORY = Path("model_repository")
RUNS = Path("runs")


def new_run_folder(prefix: str) -> Path:
    """A folder under `runs` named by *prefix* and the local time; a number is added when that second is taken."""
    stem = RUNS / f"{prefix}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    taken = [stem, *(stem.with_name(f"{stem.name}-{number}") for number in range(2, 100))]
    return next(path for path in taken if not path.exists())


def newest_run() -> Path:
    """The comparison under `runs` that was written last.

    Raises:
        InvalidInput: there is none.
    """
    manifests = sorted(RUNS.glob("*/manifest.json"), key=lambda path: path.stat().st_mtime)
    if not manifests:
        raise InvalidInput(f"No comparison in {RUNS.resolve()}: name its folder, or run `tritonbatch compare` first.")
    return manifests[-1].parent


def names(text: str, what: str) -> list[str]:
    """Split a comma-separated list.

    Raises:
        InvalidInput: it is empty, or names something twice.
    """
    found = [part.strip() for part in text.split(",") if part.strip()]
    if not found or len(set(found)) != len(found):
        raise InvalidInput(f"The {what} are {text!r}: expected different names separated by commas.")
    return found
