"""Run Locust, as the program that it is, for one schedule: its own process, so gevent patches nothing of ours."""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonbatch.errors import InvalidInput, TritonbatchError
from tritonbatch.loadtest.plan import Load

OnProgress = Callable[[Mapping[str, float]], None]

START_S = 30.0
DRAIN_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """What Locust is to send, and where: *client_batch* > 1 means static batching in the client."""

    url: str
    protocol: str
    model: str
    variant: str
    client_batch: int
    samples: Path | None
    processes: int = 1
    pattern: str = ""
    mix: str = ""
    classes: str = ""
    request_ids: str = ""


def scenario(name: str) -> Path:
    """The locustfile of that name: in the package when installed from a wheel, beside it in a checkout."""
    package = Path(__file__).parent
    installed = package / "scenarios" / f"{name}.py"
    return installed if installed.exists() else package.parents[1] / "scenarios" / f"{name}.py"


def run_locust(drive: Drive, load: Load, folder: Path, on_progress: OnProgress) -> None:
    """Play *load* through Locust and leave its records and ``records.json`` in *folder*.

    *on_progress* is told what the live view shows (see `live.py`). Whatever happens here, Locust is stopped.

    Raises:
        TritonbatchError: Locust failed or wrote no records; the message holds its last line.
    """
    limit_s = START_S + load.requests / load.rate_per_s + 2 * DRAIN_S
    reader, writer = os.pipe()
    log = folder / "locust.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            _command(drive, load, folder, writer),
            stdout=output,
            stderr=output,
            pass_fds=(writer,),
            start_new_session=True,
        )
        os.close(writer)
        try:
            deadline = time.monotonic() + limit_s
            _follow(reader, on_progress, deadline)
            process.wait(max(0.0, deadline - time.monotonic()))
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            raise TritonbatchError(f"Locust did not end within {limit_s:.0f} s; its log is {log}.") from error
        finally:
            os.close(reader)
            _stop(process)
    if process.returncode or not list(folder.glob("records*.parquet")):
        raise _failure(process.returncode, log)
    log.unlink()


def _failure(exit_code: int, log: Path) -> TritonbatchError:
    """What the user class said was wrong, or, when it said nothing, the last line that Locust printed."""
    lines = log.read_text(errors="replace").strip().splitlines() or ["it printed nothing"]
    for line in lines:
        if line.startswith("error: "):
            kind = InvalidInput if exit_code == InvalidInput.exit_code else TritonbatchError
            return kind(line.removeprefix("error: "))
    return TritonbatchError(f"Locust failed with exit code {exit_code} ({lines[-1]}); its log is {log}.")


def _command(drive: Drive, load: Load, folder: Path, progress: int) -> list[str]:
    options = {
        "--host": drive.url,
        "--protocol": drive.protocol,
        "--model": drive.model,
        "--variant": drive.variant,
        "--client-batch": drive.client_batch,
        "--samples": drive.samples or "",
        "--pattern": drive.pattern,
        "--mix": drive.mix,
        "--classes": drive.classes,
        "--request-ids": drive.request_ids,
        "--load-name": load.name,
        "--arrivals": "poisson" if drive.pattern else load.process,  # a pattern takes its place
        "--rate": load.rate_per_s,
        "--requests": load.requests,
        "--seed": load.seed,
        "--drain-s": DRAIN_S,
        "--records": folder / "records.parquet",
        "--progress-fd": progress,
    }
    flags = [f"{name}={value}" for name, value in options.items()]
    quiet = [
        "--headless",
        f"--users={drive.processes}",
        *([f"--processes={drive.processes}", *_master_port()] if drive.processes > 1 else []),
        "--only-summary",
        "--loglevel=WARNING",
        "--exit-code-on-error=0",
        "--stop-timeout=1",
    ]
    return [sys.executable, "-m", "locust", "-f", str(scenario("open_loop")), *quiet, *flags]


def _master_port() -> list[str]:
    """A port of its own for Locust's master, so that several runs do not meet."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    return ["--master-bind-host=127.0.0.1", f"--master-bind-port={port}", f"--master-port={port}"]


def _follow(reader: int, on_progress: OnProgress, deadline: float) -> None:
    """Pass on what the live view writes, until it closes its end; TimeoutError at *deadline* (monotonic)."""
    rest = b""
    while True:
        ready, _, _ = select.select([reader], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise TimeoutError
        chunk = os.read(reader, 4096)
        if not chunk:
            return
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            on_progress(json.loads(lines[-1]))


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    deadline = time.monotonic() + 5
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    if process.poll() is None:
        process.kill()
    process.wait()
