"""Who may send while a batch is under suspicion: nobody else of the same job, in whatever thread or process."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def passing(folder: Path, *, alone: bool) -> Iterator[None]:
    """Hold a place at the server for one request: beside others, or *alone*, once all others have their answers.

    Locks on two files of *folder*, so that workers in other processes take part, and a killed one lets go. Everyone
    passes the turnstile to the gate; who wants to be alone keeps it shut until done, so that nobody overtakes.
    """
    with (folder / "turnstile").open("a") as turnstile, (folder / "gate").open("a") as gate:
        fcntl.flock(turnstile, fcntl.LOCK_EX)
        fcntl.flock(gate, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(turnstile, fcntl.LOCK_UN)
        yield
