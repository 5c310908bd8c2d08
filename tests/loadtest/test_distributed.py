"""One schedule over several Locust processes: the same as in one, nothing lost, and a lost worker is said."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tritonbatch.client import Client
from tritonbatch.loadtest.generator import Drive, run_locust, scenario
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import OK, Records, read_records
from tritonbatch.server import EmbeddedServer
from tritonbatch.server.launch import Ports, free_ports

pytestmark = pytest.mark.triton

LOAD = Load(name="shared", rate_per_s=400, requests=800, seed=11)


def play(server: EmbeddedServer, folder: Path, *, processes: int, client_batch: int = 1) -> Records:
    """Run LOAD in that many processes and read what they left."""
    drive = Drive(
        url=server.http_url,
        protocol="http",
        model="linear",
        variant="v",
        client_batch=client_batch,
        samples=None,
        processes=processes,
        mix="" if client_batch > 1 else "1:0.7,4:0.3",
        classes="" if client_batch > 1 else "fast=1:0.5,bulk=2:0.5",
    )
    folder.mkdir()
    run_locust(drive, LOAD, folder, lambda _: None)
    return read_records(folder)


@pytest.mark.parametrize("client_batch", [1, 8])
def test_two_workers_play_what_one_process_plays(server: EmbeddedServer, tmp_path: Path, client_batch: int) -> None:
    """Merged, the arrivals, sizes and priorities are those of a single run, each once and answered."""
    alone = play(server, tmp_path / "alone", processes=1, client_batch=client_batch)
    with Client(server.http_url) as client:
        before = client.settled_statistics("linear").inference_count
        shared = play(server, tmp_path / "shared", processes=2, client_batch=client_batch)
        rows = client.settled_statistics("linear").inference_count - before
    for column in ("sequence", "intended_ns", "rows", "batch", "priority"):
        np.testing.assert_array_equal(getattr(shared, column), getattr(alone, column), err_msg=column)
    assert set(shared.worker.tolist()) == {0, 1}
    assert (shared.status == OK).all()
    assert (shared.sent_ns >= shared.intended_ns).all()
    assert rows == shared.rows.sum()
    summary = json.loads((tmp_path / "shared" / "records.json").read_text())
    assert (summary["complete"], summary["workers"], summary["lost_workers"]) == (True, 2, 0)
    assert summary["requests"] == summary["finished"] == 800


@pytest.fixture
def port() -> int:
    """A free port for Locust's master."""
    return free_ports(Ports()).http


@pytest.fixture
def crew(server: EmbeddedServer, tmp_path: Path, port: int) -> Iterator[list[subprocess.Popen[str]]]:
    """A master and two workers as on several machines, each its own command: a run of 6 s."""
    common = [sys.executable, "-m", "locust", "-f", str(scenario("open_loop"))]
    load = ["--model=linear", "--rate=100", "--requests=600", f"--host={server.http_url}", "--drain-s=5"]
    load += [f"--records={tmp_path / 'records.parquet'}"]
    master = ["--master", "--headless", "--users=2", "--expect-workers=2", "--master-bind-host=127.0.0.1"]
    commands = [
        [*common, *load, *master, f"--master-bind-port={port}"],
        *[[*common, *load, "--worker", "--master-host=127.0.0.1", f"--master-port={port}"]] * 2,
    ]
    running = [
        subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for command in commands
    ]
    yield running
    for process in running:
        process.kill()
        process.wait(10)


def test_a_master_and_workers_of_their_own_end_well(crew: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """All three programs end by themselves with 0, and every arrival is there once."""
    for process in crew:
        said, _ = process.communicate(timeout=60)
        assert process.returncode == 0, said
    records = read_records(tmp_path)
    assert records.sequence.tolist() == list(range(600))
    assert (records.status == OK).all()


def test_a_lost_worker_is_said_and_the_rest_is_kept(crew: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """One worker is killed in the middle: exit 2 with one sentence, the other's records, and an incomplete summary."""
    deadline = time.monotonic() + 30
    while not psutil.Process(crew[2].pid).net_connections() and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(3)
    crew[2].kill()
    said, _ = crew[0].communicate(timeout=90)
    assert crew[0].returncode == 2, said
    assert "error: 1 workers were lost" in said
    assert "Traceback" not in said
    records = read_records(tmp_path)
    assert len(records) == 300
    summary = json.loads((tmp_path / "records.json").read_text())
    assert (summary["complete"], summary["workers"], summary["lost_workers"]) == (False, 2, 1)


def test_too_few_users_for_the_workers_is_said(server: EmbeddedServer, tmp_path: Path, port: int) -> None:
    """With two processes and one user nobody could play the other half: one sentence, not a wait without end."""
    command = [sys.executable, "-m", "locust", "-f", str(scenario("open_loop")), "--headless", "--users=1"]
    command += ["--processes=2", f"--master-bind-port={port}", f"--master-port={port}", f"--host={server.http_url}"]
    command += ["--model=linear", f"--records={tmp_path / 'records.parquet'}"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 2
    assert "There are 1 users for 2 workers: give --users 2" in result.stderr
