"""Locust, as the program it is, against the real server: what it sends, what it records, how it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import psutil
import pytest

from tritonbatch.client import Client
from tritonbatch.client.counters import executions_between
from tritonbatch.errors import TritonbatchError
from tritonbatch.loadtest import generator
from tritonbatch.loadtest.arrivals import schedule
from tritonbatch.loadtest.generator import Drive, run_locust, scenario
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import STATUSES, read_records
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

LOAD = Load(name="brisk", rate_per_s=400, requests=300, seed=5)


def ignore(live: Mapping[str, float]) -> None:
    """Nobody looks at the progress."""


def drive(server: EmbeddedServer, model: str = "linear", *, protocol: str = "http", client_batch: int = 1) -> Drive:
    """What to send to the shared server."""
    url = server.grpc_url if protocol == "grpc" else server.http_url
    return Drive(url=url, protocol=protocol, model=model, variant="v", client_batch=client_batch, samples=None)


@pytest.mark.parametrize(("protocol", "client_batch"), [("http", 1), ("grpc", 1), ("http", 8), ("grpc", 8)])
def test_every_arrival_is_sent_answered_and_recorded(
    server: EmbeddedServer, tmp_path: Path, protocol: str, client_batch: int
) -> None:
    """All 300 arrivals of the seed are in the records, and the server counted as many rows (padding included)."""
    seen: list[Mapping[str, float]] = []
    with Client(server.http_url) as client:
        before = client.settled_statistics("linear")
        run_locust(drive(server, protocol=protocol, client_batch=client_batch), LOAD, tmp_path, seen.append)
        executions = executions_between(before, client.settled_statistics("linear"))
    records = read_records(tmp_path / "records.parquet")
    np.testing.assert_array_equal(records.intended_ns, schedule("poisson", 400, 300, 5))
    assert {STATUSES[code] for code in records.status} == {"ok"}
    assert (records.sent_ns >= records.intended_ns).all()
    assert (records.done_ns > records.sent_ns).all()
    assert (records.batch == client_batch).all()
    sent_rows = -(-300 // client_batch) * client_batch
    assert sum(e.batch_size * e.count for e in executions) == sent_rows
    finished = [live["finished"] for live in seen]
    assert finished == sorted(finished)
    assert finished[-1] == sent_rows
    assert seen[-1]["outstanding"] == seen[-1]["failed"] == 0
    summary = json.loads((tmp_path / "records.json").read_text())
    assert (summary["complete"], summary["finished"], summary["load"], summary["loop"]) == (True, 300, "brisk", "open")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["records.json", "records.parquet"]


def test_failures_are_recorded_as_failures(server: EmbeddedServer, tmp_path: Path) -> None:
    """Requests that the model rejects, alone or in a batch, end as failed; the run succeeds and the server lives."""
    np.savez(tmp_path / "samples.npz", index=np.array([[1], [99]], np.int64))
    request = Drive(
        url=server.http_url,
        protocol="http",
        model="gather",
        variant="v",
        client_batch=1,
        samples=tmp_path / "samples.npz",
    )
    run_locust(request, Load(name="l", rate_per_s=2000, requests=400, seed=1), tmp_path, ignore)
    statuses = [STATUSES[code] for code in read_records(tmp_path / "records.parquet").status]
    assert set(statuses) == {"ok", "failed"}
    assert statuses.count("failed") >= 200, "every second request fails, and may take its batch with it"
    server.check_alive()
    assert "Traceback" not in server.log


def test_samples_of_one_number_per_row_fit_a_model_of_one(
    server: EmbeddedServer, repository: Path, tmp_path: Path
) -> None:
    """Samples of shape [64] are sent to a model whose dims are [1]."""
    request = Drive(
        url=server.http_url,
        protocol="http",
        model="scalar",
        variant="v",
        client_batch=4,
        samples=repository / "scalar" / "samples.npz",
    )
    run_locust(request, Load(name="l", rate_per_s=200, requests=40, seed=1), tmp_path, ignore)
    assert {STATUSES[code] for code in read_records(tmp_path / "records.parquet").status} == {"ok"}


@pytest.mark.parametrize(
    ("model", "samples", "says"),
    [
        ("ghost", None, "ghost"),
        ("", None, "No model was named"),
        ("linear", b"junk", r"Cannot read the samples .*s\.npz"),
    ],
)
def test_what_cannot_be_sent_ends_the_run_at_once(
    server: EmbeddedServer, tmp_path: Path, model: str, samples: bytes | None, says: str
) -> None:
    """An unknown model or unreadable samples fail in one sentence, not in a loop of tracebacks."""
    path = tmp_path / "s.npz"
    if samples:
        path.write_bytes(samples)
    wrong = Drive(
        url=server.http_url,
        protocol="http",
        model=model,
        variant="v",
        client_batch=1,
        samples=path if samples else None,
    )
    with pytest.raises(TritonbatchError, match=says):
        run_locust(wrong, LOAD, tmp_path, ignore)


def test_a_run_that_takes_too_long_is_stopped(
    server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Past its limit Locust is stopped although it goes on reporting, and the message names the limit and the log."""
    monkeypatch.setattr(generator, "START_S", -55.0)
    monkeypatch.setattr(generator, "DRAIN_S", 0.0)
    seen: list[Mapping[str, float]] = []
    with pytest.raises(TritonbatchError, match=r"did not end within 5 s; its log is .*locust\.log"):
        run_locust(drive(server), Load(name="l", rate_per_s=2, requests=120, seed=1), tmp_path, seen.append)
    assert seen, "it was running"
    running = [each for each in psutil.Process().children(recursive=True) if each.status() != psutil.STATUS_ZOMBIE]
    assert [each.pid for each in running if "locust" in " ".join(each.cmdline())] == []


def test_where_nothing_listens_the_run_says_so(tmp_path: Path) -> None:
    """An address without a server ends the run with that address."""
    nowhere = Drive(url="localhost:9", protocol="http", model="m", variant="v", client_batch=1, samples=None)
    with pytest.raises(TritonbatchError, match="Nothing answers at localhost:9"):
        run_locust(nowhere, LOAD, tmp_path, ignore)


def test_the_generator_ends_when_nobody_reads_it(server: EmbeddedServer, tmp_path: Path) -> None:
    """When whoever started Locust is gone, so that its progress goes nowhere, it stops before its schedule."""
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "locust", "-f", str(scenario("open_loop")), "--headless", "--users=1"]
    command += [f"--host={server.http_url}", "--model=linear", "--rate=1", "--requests=120", f"--progress-fd={writer}"]
    command += [f"--records={tmp_path / 'r.parquet'}"]
    process = subprocess.Popen(
        command, pass_fds=(writer,), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    os.close(writer)
    try:
        assert os.read(reader, 10), "it says that it runs"
        os.close(reader)
        assert process.wait(30) == 1
    finally:
        process.kill()
    records = read_records(tmp_path / "r.parquet")
    assert len(records) == 120
    assert STATUSES[records.status[-1]] == "unfinished"


def test_the_scenario_runs_in_plain_locust(server: EmbeddedServer, tmp_path: Path) -> None:
    """A load tester runs the locustfile by hand: Locust's table comes out, and records beside it."""
    command = [sys.executable, "-m", "locust", "-f", str(scenario("open_loop")), "--headless", "-u", "1"]
    command += ["--host", server.http_url, "--model", "linear", "--rate", "100", "--requests", "50"]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr
    assert "linear served" in result.stdout + result.stderr
    assert len(read_records(tmp_path / "records.parquet")) == 50
