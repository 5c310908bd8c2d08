"""A job that is killed, interrupted, or loses its server: every item once and in order, and little is done twice."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import psutil
import pytest

from tritonbatch.client import Client
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

Floats = npt.NDArray[np.float32]
Start = Callable[[Sequence[str], Path], subprocess.Popen[str]]
Batch = Callable[[Sequence[str], Path], tuple[int, str]]
Wait = Callable[[subprocess.Popen[str], Path, int], None]

ROWS, SIZE = 6144, 4
PART_ROWS = 64 * SIZE
BATCHES = ROWS // SIZE
MEASURED = 4
ARGUMENTS = ["x.npy", "y.npy", "--model", "linear", "--batch", str(SIZE)]


@pytest.fixture
def right(floats: Callable[[int], Floats], weights: Floats, tmp_path: Path) -> Floats:
    """The results for x.npy, which is in place."""
    x = floats(ROWS)
    np.save(tmp_path / "x.npy", x)
    return x @ weights


def executions(server: EmbeddedServer) -> int:
    """How many batches the model has run so far."""
    with Client(server.http_url) as client:
        return int(client.settled_statistics("linear").inference_stats.success.count)


def finished_rows(folder: Path) -> int:
    """How many rows are in finished parts; each is a full one while the job's last is missing."""
    return len(list(folder.glob("y.npy.parts/part-*[0-9].json"))) * PART_ROWS


def test_a_killed_job_goes_on_with_the_same_command(
    server: EmbeddedServer, start_batch: Start, wait_for_parts: Wait, right: Floats, tmp_path: Path
) -> None:
    """After SIGKILL finished parts are not sent again, and the output has every row once and in order."""
    there = ["--url", server.grpc_url, "--protocol", "grpc"]
    for parts in (3, 9):
        process = start_batch([*ARGUMENTS, *there], tmp_path)
        wait_for_parts(process, tmp_path / "y.npy", parts)
        process.kill()
        process.wait(10)
    assert not (tmp_path / "y.npy").exists()
    kept, before = finished_rows(tmp_path), executions(server)
    said, _ = start_batch([*ARGUMENTS, *there], tmp_path).communicate(timeout=60)
    assert f"{kept} rows are done already" in said
    assert f"{(ROWS - kept) // SIZE} batches at " in said
    assert executions(server) - before == (ROWS - kept) // SIZE + MEASURED
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), right, rtol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "y.npy"]


def test_an_interrupted_job_says_how_to_go_on(
    server: EmbeddedServer, start_batch: Start, wait_for_parts: Wait, right: Floats, tmp_path: Path
) -> None:
    """Ctrl-C ends it at once with exit code 130 and a sentence; the same command then does the rest."""
    process = start_batch([*ARGUMENTS, "--url", server.http_url], tmp_path)
    wait_for_parts(process, tmp_path / "y.npy", 2)
    process.send_signal(signal.SIGINT)
    said, _ = process.communicate(timeout=20)
    assert process.returncode == 130
    assert "parts are kept; the same command goes on from there." in said
    assert "Traceback" not in said
    assert start_batch([*ARGUMENTS, "--url", server.http_url], tmp_path).wait(60) == 0
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), right, rtol=1e-5)


@pytest.fixture
def doomed(repository: Path) -> Iterator[EmbeddedServer]:
    """A server of the test's own, to kill."""
    with EmbeddedServer(repository, models=["linear"], config_name="dynamic") as running:
        yield running


def tritonserver_of(server: EmbeddedServer) -> psutil.Process:
    """The process that listens at the server's port, a descendant of its guard."""
    assert server._guard is not None
    guard = psutil.Process(server._guard.pid)
    return next(child for child in guard.children(recursive=True) if "tritonserver" in child.cmdline()[0])


@dataclass(frozen=True)
class Restarted:
    """How `doomed` is killed, and a second server started on its ports."""

    kill: Callable[[], None]
    again: Callable[[], EmbeddedServer]


@pytest.fixture
def restarted(doomed: EmbeddedServer) -> Restarted:
    """The end of `doomed`, and another server that takes its place."""

    def kill() -> None:
        tritonserver_of(doomed).kill()
        doomed.stop()

    options = {"models": ["linear"], "config_name": "dynamic", "ports": doomed.ports}
    return Restarted(kill, lambda: EmbeddedServer(doomed.repository, **options))


@pytest.fixture(params=["http", "grpc"])
def address(doomed: EmbeddedServer, request: pytest.FixtureRequest) -> list[str]:
    """The flags that lead to `doomed` over each protocol."""
    return ["--url", doomed.http_url if request.param == "http" else doomed.grpc_url, "--protocol", request.param]


def test_a_killed_server_is_waited_for(
    restarted: Restarted,
    address: list[str],
    start_batch: Start,
    wait_for_parts: Wait,
    right: Floats,
    tmp_path: Path,
) -> None:
    """The server is killed amid the job and comes back at the same ports: the job says so, waits, and finishes."""
    process = start_batch([*ARGUMENTS, *address], tmp_path)
    wait_for_parts(process, tmp_path / "y.npy", 3)
    restarted.kill()
    with restarted.again() as again:
        said, _ = process.communicate(timeout=60)
        sent = executions(again)
    assert process.returncode == 0, said
    assert "waiting: " in said
    assert sent < BATCHES
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), right, rtol=1e-5)
    assert not (tmp_path / "y.npy.errors.jsonl").exists()


def test_a_server_that_stays_away_ends_the_job(
    doomed: EmbeddedServer, start_batch: Start, run_batch: Batch, wait_for_parts: Wait, right: Floats, tmp_path: Path
) -> None:
    """Beyond --patience-s it gives up with one sentence and keeps what is finished; started then, it ends at once."""
    arguments = [*ARGUMENTS, "--url", doomed.http_url, "--patience-s", "1"]
    process = start_batch(arguments, tmp_path)
    wait_for_parts(process, tmp_path / "y.npy", 2)
    tritonserver_of(doomed).kill()
    said, _ = process.communicate(timeout=30)
    assert process.returncode in {1, 2}
    assert "error: Nothing answers at " in said
    assert "Traceback" not in said
    assert finished_rows(tmp_path) >= 2 * PART_ROWS
    code, said = run_batch(arguments, tmp_path)
    assert code == 2
    assert "error: Nothing answers at " in said


def test_a_changed_job_is_refused(
    server: EmbeddedServer, start_batch: Start, run_batch: Batch, wait_for_parts: Wait, right: Floats, tmp_path: Path
) -> None:
    """Finished parts of another input, or batch size, are never mixed with new ones; one sentence says what differs."""
    there = ["--url", server.http_url]
    process = start_batch([*ARGUMENTS, *there], tmp_path)
    wait_for_parts(process, tmp_path / "y.npy", 1)
    process.kill()
    process.wait(10)
    code, said = run_batch([*ARGUMENTS[:-1], "8", *there], tmp_path)
    assert code == 2
    assert "holds parts of another job (batch 4, not 8; part_rows 256, not 512)" in said
    np.save(tmp_path / "x.npy", np.load(tmp_path / "x.npy") + 1)
    code, said = run_batch([*ARGUMENTS, *there], tmp_path)
    assert code == 2
    assert "holds parts of another job (the input has changed)" in said
    assert "remove the folder to start anew" in said


def test_a_second_run_on_the_same_output_is_refused(
    server: EmbeddedServer, start_batch: Start, run_batch: Batch, wait_for_parts: Wait, right: Floats, tmp_path: Path
) -> None:
    """While one run is at work another one with its output ends with a sentence, and the first finishes undisturbed."""
    arguments = [*ARGUMENTS, "--url", server.http_url]
    first = start_batch(arguments, tmp_path)
    wait_for_parts(first, tmp_path / "y.npy", 1)
    first.send_signal(signal.SIGSTOP)
    code, said = run_batch(arguments, tmp_path)
    first.send_signal(signal.SIGCONT)
    assert code == 2
    assert "error: Another run is writing to y.npy.parts" in said
    assert first.wait(60) == 0
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), right, rtol=1e-5)
