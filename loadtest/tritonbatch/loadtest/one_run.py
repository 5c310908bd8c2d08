"""One run with the server's truth beside it: warm up, read the counters, play the load, read them again."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tritonbatch.client import Client
from tritonbatch.loadtest.folder import write_json
from tritonbatch.loadtest.generator import Drive, OnProgress, run_locust
from tritonbatch.loadtest.mixes import mix
from tritonbatch.loadtest.patterns import pattern
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.samples import sample_batches
from tritonbatch.loadtest.think_time import closed
from tritonbatch.server.machine import machine

VERSIONED = ("tritonbatch", "tritonclient", "locust", "onnxruntime", "numpy", "grpcio", "gevent")


def load_of(text: str, name: str, seed: int) -> Load:
    """The load of a pattern, open or closed; a closed one counts its seconds, as nobody knows its requests.

    Raises:
        InvalidInput: the pattern cannot be.
    """
    if text.startswith("closed"):
        seconds = max(1, round(closed(text).seconds))
        return Load(name=name, rate_per_s=1.0, requests=seconds, seed=seed, process=text, loop="closed")
    read = pattern(text)
    requests = max(1, round(read.mean_rate_per_s * read.seconds))
    return Load(name=name, rate_per_s=read.mean_rate_per_s, requests=requests, seed=seed, process=text)


def one_run(run: Path, client: Client, drive: Drive, load: Load, on_progress: OnProgress) -> None:
    """Leave the records, their summary and the server's statistics before and after in the folder *run*.

    Raises:
        TritonbatchError: the server or the run failed.
    """
    run.mkdir(parents=True, exist_ok=True)
    config = client.config(drive.model)
    sizes = {drive.client_batch, config.max_batch_size or 1, *(mix(drive.mix).sizes if drive.mix else ())}
    _warm_up(client, drive, {size for size in sizes if size <= max(1, config.max_batch_size)})
    before = client.settled_statistics(drive.model)
    run_locust(drive, load, run, on_progress)
    after = client.settled_statistics(drive.model)
    write_json(run / "server.json", {"before": before, "after": after, "config": config})


def run_manifest(seed: int, protocol: str) -> dict[str, Any]:
    """What a run must be read with: when, on what machine, with which versions and seed; not complete yet."""
    return {
        "complete": False,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "commit": _commit(),
        "versions": {name: version(name) for name in VERSIONED if _installed(name)},
        "seed": seed,
        "protocol": protocol,
    }


def _warm_up(client: Client, drive: Drive, sizes: set[int]) -> None:
    """Run every size twice before the counters are read: first executions allocate and are never typical."""
    for size in sorted(sizes):
        request = client.request(drive.model, sample_batches(client, drive.model, size, drive.samples)[0])
        for _ in range(2):
            client.send(request)


def _commit() -> str:
    """The commit of the folder in which this was started, marked where files differ from it; empty outside of git."""
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],  # noqa: S607 - whichever git
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def _installed(package: str) -> bool:
    try:
        return bool(version(package))
    except ImportError:
        return False
