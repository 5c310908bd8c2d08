"""``tritonbatch load`` as its users run it: against a running server, and with every mistake they can make."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tritonbatch.cli.live import caption, live_table
from tritonbatch.loadtest.records import read_records
from tritonbatch.loadtest.tracing import trace_arguments
from tritonbatch.observe.join import join
from tritonbatch.observe.trace import read_trace_table
from tritonbatch.server import EmbeddedServer

COMMAND = str(Path(sys.executable).parent / "tritonbatch")
ENVIRONMENT = {**os.environ, "COLUMNS": "160", "TERM": "dumb"}


def run(arguments: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the installed command in *cwd*."""
    return subprocess.run(
        [COMMAND, *arguments], cwd=cwd, env=ENVIRONMENT, capture_output=True, text=True, timeout=200, check=False
    )


@pytest.mark.triton
def test_repeats_become_a_baseline_and_pass_their_own_gate(server: EmbeddedServer, tmp_path: Path) -> None:
    """Two mixed runs print their figures and notes; their folders are a baseline, and rerun they pass it."""
    load = ["load", "--url", server.http_url, "--model", "linear", "--pattern", "poisson:rate=150,seconds=2"]
    load += ["--classes", "interactive=1:0.7,bulk=2x4:0.3", "--repeats", "2", "--metrics-url", server.metrics_url]
    first = run([*load, "--output", "one"], tmp_path)
    assert first.returncode == 0, first.stderr
    for says in (
        "load 1",
        "load 2",
        "95 % intervals",
        "Mean latency by part",
        "interactive (priority 1): goodput",
        "0 failed",
        "Pending requests in the server's queue",
    ):
        assert says in first.stdout
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["server"]["version"] == "2.51.0"
    folders = [str(path.parent) for path in sorted((tmp_path / "one").glob("runs/*/*/*/records.json"))]
    assert len(folders) == 2
    saved = run(["gate", *folders, "--save-baseline", "baseline.json"], tmp_path)
    assert saved.returncode == 0, saved.stderr
    passed = run(["gate", *folders, "--baseline", "baseline.json", "--slo", "p99=10s", "--json", "gate.json"], tmp_path)
    assert passed.returncode == 0, passed.stdout + passed.stderr
    missed = run(["gate", *folders, "--baseline", "baseline.json", "--slo", "p50=1us"], tmp_path)
    assert missed.returncode == 1
    assert run(["report", "one", "--markdown"], tmp_path).returncode == 0


@pytest.mark.triton
def test_a_traced_run_tells_the_two_waits_apart(repository: Path, tmp_path: Path) -> None:
    """Of two workers' full batches the trace finds every request, and its parts stand in the place of the queue's."""
    arguments = trace_arguments(tmp_path / "trace.json")
    with EmbeddedServer(repository, config_name="dynamic", models=["linear"], arguments=arguments) as traced:
        load = ["load", "--url", traced.grpc_url, "--protocol", "grpc", "--model", "linear", "--client-batch", "2"]
        load += ["--pattern", "poisson:rate=200,seconds=1", "--processes", "2", "--trace", "--output", "run"]
        result = run(load, tmp_path)
        assert result.returncode == 0, result.stderr
    assert "waiting for the batch" in result.stdout
    folder = tmp_path / "run" / "runs" / "linear" / "load" / "served"
    records, trace = read_records(folder), read_trace_table(folder / "trace.parquet")
    joined = join(records, trace)
    assert (joined.row >= 0).all()
    assert np.count_nonzero(trace.request_id != "") == len(np.unique(records.sequence // 2)), "the rest is the warm-up"


@pytest.mark.triton
def test_a_comparison_repeated_shows_the_noise(repository: Path, tmp_path: Path) -> None:
    """Two interleaved repeats: one table with the spread of each figure, and a comparison of its own for each."""
    compare = ["compare", str(repository), "--model", "linear", "--variants", "serial,dynamic", "--rate", "80"]
    result = run([*compare, "--seconds", "1", "--repeats", "2", "--output", "twice"], tmp_path)
    assert result.returncode == 0, result.stderr
    assert "linear, 2 repeats" in result.stdout
    assert result.stdout.count(" ± ") >= 6
    assert run(["report", "twice/repeat-2", "--markdown"], tmp_path).returncode == 0


@pytest.mark.triton
def test_a_server_without_a_trace_file_cannot_be_traced(server: EmbeddedServer, tmp_path: Path) -> None:
    """One sentence says how it must be started, and nothing was sent."""
    result = run(["load", "--url", server.http_url, "--model", "linear", "--trace"], tmp_path)
    assert result.returncode == 2
    assert "--trace-config" in result.stderr


@pytest.mark.triton
@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--pattern", "nonsense"], "expected one of poisson"),
        (["--pattern", "poisson:rate=-1,seconds=1"], "expected a number above 0"),
        (["--pattern", "trace:missing.csv"], "missing.csv"),
        (["--pattern", "closed:users=0,seconds=1"], "at least 1"),
        (["--protocol", "carrier-pigeon"], "expected http or grpc"),
        (["--processes", "0"], "--processes is 0"),
        (["--repeats", "0"], "--repeats is 0"),
        (["--mix", "1:zero"], "expected a number above 0"),
        (["--classes", "interactive"], "NAME=PRIORITY:WEIGHT"),
        (["--client-batch", "99"], "max_batch_size"),
        (["--samples", "missing.npz"], "Cannot read the samples"),
        (["--model", "ghost"], "ghost is not ready"),
        (["--metrics-url", "localhost:8002"], "expected http://HOST:PORT/metrics"),
        (["--url", "localhost:1"], "No Triton is ready at localhost:1"),
    ],
)
def test_a_mistake_is_one_sentence(server: EmbeddedServer, tmp_path: Path, flags: list[str], says: str) -> None:
    """Exit code 2, what was given and what was expected, no traceback."""
    result = run(["load", "--url", server.http_url, "--model", "linear", *flags], tmp_path)
    assert result.returncode == 2, result.stdout + result.stderr
    assert says in result.stderr
    assert "Traceback" not in result.stderr


SNAPSHOT: Mapping[str, float] = {
    "finished": 1234,
    "failed": 0,
    "rate_per_s": 456,
    "p50_ms": 3,
    "p95_ms": 7,
    "p99_ms": 12,
    "outstanding": 5,
    "lag_ms": 0.1,
    "cap_waits": 0,
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, "latency since the start"),
        ({"lag_ms": 50.0}, "generator saturated: 50 ms behind"),
        ({"cap_waits": 7}, "generator saturated: 7 requests waited at the cap"),
    ],
)
def test_the_live_table_says_when_the_generator_is_saturated(changes: Mapping[str, float], says: str) -> None:
    """Every figure has its column, failures included, and saturation is said under them."""
    console = Console(width=140, record=True, file=open(os.devnull, "w"))  # noqa: SIM115, PTH123
    console.print(live_table("linear at localhost:8000", {**SNAPSHOT, **changes}, 3.4))
    shown = console.export_text()
    for cell in ("1,234", "456", "12", "3.4", "failed"):
        assert cell in shown
    assert says in shown
    assert caption({**SNAPSHOT, **changes}).plain.startswith(says[:9])
