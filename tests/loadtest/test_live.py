"""What a run shows while it runs: Locust's table and web page, progress lines, metrics; all agree with the records."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tritonbatch.loadtest.exposition import exposition
from tritonbatch.loadtest.generator import scenario
from tritonbatch.loadtest.records import OK, read_records
from tritonbatch.server import EmbeddedServer
from tritonbatch.server.launch import Ports, free_ports

SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\["\\n])*",?)+)\} (\S+)')
LABEL = re.compile(r'(\w+)="((?:[^"\\\n]|\\["\\n])*)"')
UNESCAPED = {"\\n": "\n", '\\"': '"', "\\\\": "\\"}

Parsed = dict[tuple[str, str], float]


def parsed(text: str, model: str) -> Parsed:
    """Values by name and ``le``; every line must be well-formed, of a metric with HELP and TYPE, and of *model*."""
    found: Parsed = {}
    kinds: dict[str, str] = {}
    helped: set[str] = set()
    assert text.endswith("\n")
    for line in text[:-1].split("\n"):
        if line.startswith("# HELP "):
            helped.add(line.split(" ", 3)[2])
        elif line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name in helped
            kinds[name] = kind
        else:
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels = match[1], dict(LABEL.findall(match[2]))
            assert kinds.get(name) or kinds[re.sub("_(bucket|sum|count)$", "", name)] == "histogram"
            assert re.sub(r"\\.", lambda escape: UNESCAPED[escape[0]], labels.pop("model")) == model
            assert (name, labels.get("le", "")) not in found
            found[name, labels.get("le", "")] = float(match[3])
    return found


def check_histogram(found: Parsed) -> None:
    """Buckets only grow with their edges, and end in +Inf, which is the count."""
    buckets = [(float(le), value) for (name, le), value in found.items() if name == "tritonbatch_latency_ms_bucket"]
    assert [le for le, _ in buckets] == sorted({le for le, _ in buckets})
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)
    assert buckets[-1] == (float("inf"), found["tritonbatch_latency_ms_count", ""])


@pytest.mark.parametrize("model", ["plain", 'a"b\n', "back\\slash\\n", 'le="1"}', "ä{}, #"])
def test_any_models_name_is_a_label(model: str) -> None:
    """Whatever the model is called, the text can be parsed, and says that name."""
    total = SimpleNamespace(response_times={3: 2, 700: 1}, num_requests=3, num_failures=1, total_response_time=706.25)
    found = parsed(exposition(total, {"outstanding": 4, "lag_ms": 0.125, "cap_waits": 0}, model), model)
    check_histogram(found)
    assert found["tritonbatch_latency_ms_bucket", "5"] == 2
    assert found["tritonbatch_latency_ms_bucket", "1000"] == 3
    assert found["tritonbatch_latency_ms_sum", ""] == 706.25
    assert found["tritonbatch_failed_requests_total", ""] == 1
    assert found["tritonbatch_outstanding_requests", ""] == 4
    assert found["tritonbatch_schedule_lag_ms", ""] == 0.125


def test_large_counters_keep_every_digit() -> None:
    """Ten million and one requests are not ten million; nothing at all is zeros."""
    total = SimpleNamespace(
        response_times={3: 10_000_000, 20_000: 1},
        num_requests=10_000_001,
        num_failures=1234567,
        total_response_time=0.0,
    )
    state = {"outstanding": 0, "lag_ms": 0.0, "cap_waits": 0}
    found = parsed(exposition(total, state, "m"), "m")
    check_histogram(found)
    assert found["tritonbatch_requests_total", ""] == 10_000_001
    assert found["tritonbatch_failed_requests_total", ""] == 1234567
    assert found["tritonbatch_latency_ms_bucket", "10000"] == 10_000_000
    nothing = SimpleNamespace(response_times={}, num_requests=0, num_failures=0, total_response_time=0)
    assert set(parsed(exposition(nothing, state, "m"), "m").values()) == {0}


BULK = """
import itertools, time
import numpy as np
from locust.env import Environment
from locust.stats import RequestStats
import locust.stats
from tritonbatch.loadtest import locust_stats

clock = itertools.count(1000)
def environment():
    made = Environment()
    made.create_local_runner()
    return made

rng = np.random.default_rng(4)
latency = np.concatenate([
    rng.exponential(30, 500), rng.exponential(3000, 500), rng.integers(0, 40000, 300) / 10,
    [0.0, 0.5, 1.5, 99.5, 99.99, 100, 144.9, 145, 145.04, 145.4, 154.6, 995, 999.99, 1049.6, 1050.4, 9950, 10499.7],
])
status = rng.choice([1, 1, 1, 2, 3, 4], len(latency)).astype(np.uint8)
bulk, single = environment(), environment()
heard = []
single.events.request.add_listener(
    lambda request_type, name, response_time, response_length, response, context, exception, **_:
        heard.append(exception)
)
now = time.time
for number, part in enumerate(np.array_split(np.arange(len(latency)), 7)):
    time.time = lambda: 1_000_000.0 + number
    for each in (bulk, single):
        locust_stats.report(each, "m v", latency[part], status[part], 2)
        locust_stats.report(each, "m v", latency[:0], status[:0], 2)
time.time = now
assert len(heard) == len(latency)
assert sum(error is not None for error in heard) == (status != 1).sum()
entries = [(each.stats.total, each.stats.get("m v", "infer")) for each in (bulk, single)]
for a, b in zip(*entries):
    for field in ("num_requests", "num_failures", "num_none_requests", "min_response_time", "max_response_time",
                  "response_times", "num_reqs_per_sec", "num_fail_per_sec", "total_content_length",
                  "last_request_timestamp"):
        assert getattr(a, field) == getattr(b, field), (field, getattr(a, field), getattr(b, field))
    assert np.isclose(a.total_response_time, b.total_response_time)
    for quantile in (0, 0.5, 0.95, 0.99, 1):
        assert a.get_response_time_percentile(quantile) == b.get_response_time_percentile(quantile)
    caches = [{second: each for second, each in x.response_times_cache.items() if 1_000_000 <= second < 1_000_006}
              for x in (a, b)]
    assert caches[0] == caches[1] and len(caches[0]) == 6, caches
errors = [{key: error.occurrences for key, error in each.stats.errors.items()} for each in (bulk, single)]
assert errors[0] == errors[1] and len(errors[0]) == 3, errors
"""


def test_statistics_in_bulk_are_those_of_single_events() -> None:
    """Counts, sums, buckets, rates, percentiles, failures and the page's recent seconds, whoever listens or not."""
    result = subprocess.run([sys.executable, "-c", BULK], capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 0, result.stderr


def until(found: Callable[[], object], seconds: float = 40) -> None:
    """Wait until *found* says something that is not false; a server that is not there yet says nothing."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if found():
                return
        except (OSError, urllib.error.URLError):
            pass
        time.sleep(0.05)
    pytest.fail("it did not come")


def page(port: int, path: str) -> str:
    """What is served there."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
        return str(answer.read().decode())


@pytest.mark.triton
def test_the_web_page_and_the_metrics_show_the_run(server: EmbeddedServer, tmp_path: Path) -> None:
    """Locust's page has a row for the model with as many requests as there are records; Prometheus can read along."""
    ports = free_ports(Ports())
    web, metrics = ports.http, ports.grpc
    command = [sys.executable, "-m", "locust", "-f", str(scenario("open_loop")), "--autostart", "-u", "1"]
    command += ["--web-host=127.0.0.1", f"--web-port={web}", f"--metrics-port={metrics}", f"--host={server.http_url}"]
    command += ["--model=linear", "--rate=100", "--requests=300", "--arrivals=constant"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        texts: list[str] = []

        def counted() -> bool:
            texts.append(page(metrics, "/metrics"))
            return parsed(texts[-1], "linear")["tritonbatch_requests_total", ""] > 50

        until(counted)
        for text in texts:
            check_histogram(parsed(text, "linear"))
        assert "Locust" in page(web, "/")

        def rows() -> dict[str, int]:
            return {row["name"]: row["num_requests"] for row in json.loads(page(web, "/stats/requests"))["stats"]}

        until(lambda: (tmp_path / "records.json").exists() and rows().get("linear served", 0) >= 300)
        records = read_records(tmp_path)
        assert rows() == {"linear served": len(records), "Aggregated": len(records)}
        assert (records.status == OK).all()
    finally:
        process.terminate()
        said, _ = process.communicate(timeout=20)
    assert "Traceback" not in said, said


LISTENING = """
import json
from locust import events
from tritonbatch.loadtest.user import OpenLoopUser

heard = []

@events.request.add_listener
def hear(request_type, name, response_time, response_length, response, context, exception, **_):
    heard.append((request_type, name, response_time, response_length, exception is None))

@events.quitting.add_listener
def keep(environment, **_):
    open("heard.json", "w").write(json.dumps([heard, environment.stats.total.num_requests]))

class Requests(OpenLoopUser):
    def samples(rng, rows):
        return {"index": rng.choice([1, 99], (rows, 1), p=[0.9, 0.1])}
"""


@pytest.mark.triton
def test_listeners_and_progress_lines_get_every_request(server: EmbeddedServer, tmp_path: Path) -> None:
    """Each request is one of Locust's events, once, as its record says; progress is JSON and ends with the count."""
    (tmp_path / "locustfile.py").write_text(LISTENING, encoding="utf-8")
    reader, writer = os.pipe()
    command = [sys.executable, "-m", "locust", "--headless", "-u", "1", f"--host={server.http_url}", "--model=gather"]
    command += ["--rate=300", "--requests=300", f"--progress-fd={writer}", "--exit-code-on-error=0"]
    process = subprocess.Popen(
        command, cwd=tmp_path, pass_fds=(writer,), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    os.close(writer)
    try:
        said, _ = process.communicate(timeout=60)
        progress = b""
        while piece := os.read(reader, 65536):
            progress += piece
    finally:
        process.kill()
        os.close(reader)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    heard, count = json.loads((tmp_path / "heard.json").read_text())
    records = read_records(tmp_path)
    failed = int((records.status != OK).sum())
    assert len(heard) == count == len(records) == 300
    assert {(kind, name, rows) for kind, name, _, rows, _ in heard} == {("infer", "gather served", 1)}
    assert sum(not ok for *_, ok in heard) == failed > 0
    latencies = (records.done_ns - records.intended_ns) / 1e6
    assert sorted(milliseconds for _, _, milliseconds, _, _ in heard) == pytest.approx(sorted(latencies.tolist()))
    lines = [json.loads(line) for line in progress.decode().splitlines()]
    assert lines[-1]["finished"] == 300
    assert (lines[-1]["failed"], lines[-1]["outstanding"]) == (failed, 0)
    finished = [line["finished"] for line in lines]
    assert finished == sorted(finished)
    assert len(finished) >= 3


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_port_that_is_taken_is_said(server: EmbeddedServer, tmp_path: Path, protocol: str) -> None:
    """Metrics on a port of somebody else's: one sentence and exit code 2, and no run without them."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        url = server.http_url if protocol == "http" else server.grpc_url
        command = [sys.executable, "-m", "locust", "-f", str(scenario("open_loop")), "--headless", "-u", "1"]
        command += [f"--host={url}", f"--protocol={protocol}", "--model=linear", f"--metrics-port={port}"]
        result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert result.returncode == 2, result.stderr
    assert f"error: --metrics-port is {port}: " in result.stderr
    assert "Traceback" not in result.stderr
