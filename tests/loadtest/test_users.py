"""Users for anyone's locustfile, in plain Locust: what they send, what Locust counts, how they stop and fail."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tritonbatch.client import Client
from tritonbatch.client.counters import executions_between
from tritonbatch.server import EmbeddedServer

HEAD = """\
import json
from pathlib import Path
from locust import constant, events, task
from tritonbatch.loadtest.users import TritonGrpcUser, TritonHttpUser

seen = []

@events.request.add_listener
def hear(name, response_time, response_length, response, context, exception, **_):
    seen.append((name, response_length, context["priority"], exception is None and response is not None))

@events.quitting.add_listener
def keep(environment, **_):
    Path("seen.json").write_text(json.dumps([seen, environment.stats.total.num_requests]))

"""
TASK = """
    wait_time = constant(0.01)
    @task
    def ask(self):
        self.infer()
"""


def started(folder: Path, host: str, program: str, *flags: str) -> subprocess.Popen[str]:
    """Locust with the locustfile *program* in *folder*."""
    folder.mkdir(exist_ok=True)
    (folder / "locustfile.py").write_text(HEAD + program, encoding="utf-8")
    command = [sys.executable, "-m", "locust", "--headless", "--host", host, "--only-summary", *flags]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def said_by(process: subprocess.Popen[str]) -> str:
    """What Locust printed until it ended by itself."""
    try:
        return process.communicate(timeout=60)[0]
    finally:
        process.kill()


def seen_in(folder: Path) -> tuple[list[tuple[str, int, int, bool]], int]:
    """Name, rows, priority and success of every request that Locust was told of, and how many it counted."""
    requests, count = json.loads((folder / "seen.json").read_text())
    return [tuple(request) for request in requests], count


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_five_lines_are_a_load_test(server: EmbeddedServer, tmp_path: Path, protocol: str) -> None:
    """Eight users for 3 s: exit 0, and Triton has counted the requests and rows that Locust has, none lost."""
    np.savez(tmp_path / "rows.npz", x=np.ones((16, 4), np.float32))
    url, kind = (server.http_url, "TritonHttpUser") if protocol == "http" else (server.grpc_url, "TritonGrpcUser")
    program = f"class Ask({kind}):\n    model, samples, batch_sizes = 'linear', 'rows.npz', {{1: 0.5, 4: 0.5}}" + TASK
    with Client(server.http_url) as client:
        before = client.settled_statistics("linear")
        process = started(tmp_path, url, program, "-u", "8", "-r", "8", "-t", "3s", "-s", "10")
        said = said_by(process)
        after = client.settled_statistics("linear")
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert "linear" in said
    requests, count = seen_in(tmp_path)
    assert all(ok for _, _, _, ok in requests)
    assert {(name, rows, priority) for name, rows, priority, _ in requests} == {("linear", 1, 0), ("linear", 4, 0)}
    assert len(requests) == count == after.inference_stats.success.count - before.inference_stats.success.count
    rows = sum(rows for _, rows, _, _ in requests)
    assert rows == sum(e.batch_size * e.count for e in executions_between(before, after))
    assert {e.batch_size for e in executions_between(before, after)} & {1, 4}


@pytest.mark.triton
@pytest.mark.parametrize("kind", ["TritonHttpUser", "TritonGrpcUser"])
def test_users_stop_in_the_middle_of_a_request(server: EmbeddedServer, tmp_path: Path, kind: str) -> None:
    """Without time to finish, users who never pause stop at once and nothing hangs."""
    program = f"class Ask({kind}):\n    model = 'linear'" + TASK.replace("0.01", "0")
    url = server.http_url if kind == "TritonHttpUser" else f"http://{server.grpc_url}/"
    process = started(tmp_path, url, program, "-u", "8", "-r", "8", "-t", "3s")
    said = said_by(process)
    assert process.returncode == 0, said
    assert "Traceback" not in said
    assert seen_in(tmp_path)[1] > 0


@pytest.mark.triton
def test_failures_are_locusts_failures_and_tasks_see_answers(server: EmbeddedServer, tmp_path: Path) -> None:
    """A task sends inputs of its own under a name of its own, gets the answer, or None for what failed."""
    program = """
def make(rng, rows):
    return {"index": rng.integers(0, 10, (rows, 1))}

class Ask(TritonHttpUser):
    model, samples, wait_time = "gather", make, constant(0.05)

    @task
    def ask(self):
        assert self.infer().arrays()["value"].shape == (1, 1)
        assert self.infer({"index": [[3]]}, name="three").as_numpy("value").tolist() == [[3.0]]
        assert self.infer({"index": [[99]]}, name="bad") is None
        assert self.infer({"x": [[1]]}, name="odd") is None
        assert self.infer({"x": [[1, 2, 3, 4]]}, model="linear").model == "linear"
"""
    process = started(tmp_path, server.http_url, program, "-u", "1", "-t", "3s", "-s", "10")
    said = said_by(process)
    assert process.returncode == 1, said
    assert "Traceback" not in said
    requests, count = seen_in(tmp_path)
    assert len(requests) == count
    named = {name: [ok for each, _, _, ok in requests if each == name] for name in ("gather", "three", "linear")}
    assert all(outcomes and all(outcomes) for outcomes in named.values())
    failed = {name for name, _, _, ok in requests if not ok}
    assert failed == {"bad", "odd"}
    assert "Error report" in said
    assert "99" in said or "out of" in said, "Triton's own words are in Locust's table"


class Fake(BaseHTTPRequestHandler):
    """A server with one model m, FP32 of any length, that keeps priority and shape of every request."""

    protocol_version = "HTTP/1.1"
    asked: list[tuple[int, tuple[int, ...]]]

    def do_GET(self) -> None:
        """Metadata and configuration."""
        tensors = {"inputs": [("x", [-1, -1])], "outputs": [("y", [-1, 1])]}
        metadata: dict[str, Any] = {
            kind: [{"name": name, "datatype": "FP32", "shape": shape} for name, shape in each]
            for kind, each in tensors.items()
        }
        config = {"name": "m", "max_batch_size": 8}
        self._say(config if self.path.endswith("config") else {"name": "m", "versions": ["1"], **metadata})

    def do_POST(self) -> None:
        """An inference."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = json.loads(body[: int(self.headers["Inference-Header-Content-Length"])])
        self.asked.append((asked.get("parameters", {}).get("priority", 0), tuple(asked["inputs"][0]["shape"])))
        self._say({"model_name": "m", "model_version": "1", "outputs": []})

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def _say(self, answer: Mapping[str, Any]) -> None:
        text = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


@pytest.fixture
def fake() -> Iterator[ThreadingHTTPServer]:
    """The fake server, on a port of its own."""
    Fake.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Fake) as made:
        made.daemon_threads = True
        serving = threading.Thread(target=made.serve_forever)
        serving.start()
        yield made
        made.shutdown()
        serving.join(10)


def test_priorities_and_shapes_are_in_the_requests(fake: ThreadingHTTPServer, tmp_path: Path) -> None:
    """Items of several lengths from a .jsonl, in two sizes and with two priorities, arrive as such."""
    lines = [{"x": [0.5] * length} for length in (2, 2, 5, 5, 5)]
    (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    program = (
        "class Ask(TritonHttpUser):\n    model, samples = 'm', Path('items.jsonl')\n"
        "    batch_sizes, priorities = {1: 1, 2: 1}, {1: 3, 2: 1}" + TASK
    )
    process = started(
        tmp_path, f"http://127.0.0.1:{fake.server_port}", program, "-u", "4", "-r", "4", "-t", "3s", "-s", "10"
    )
    said = said_by(process)
    assert process.returncode == 0, said
    assert {shape for _, shape in Fake.asked} == {(1, 2), (1, 5), (2, 2), (2, 5)}
    requests, count = seen_in(tmp_path)
    assert sorted(priority for priority, _ in Fake.asked) == sorted(priority for _, _, priority, _ in requests)
    assert count == len(Fake.asked)
    priorities = [priority for priority, _ in Fake.asked]
    assert priorities.count(1) > priorities.count(2) > 0


MISTAKES = {
    "unknown model": ("http", "model = 'ghost'", "ghost"),
    "unknown model over gRPC": ("grpc", "model = 'ghost'", "ghost"),
    "no model": ("http", "pass", "Ask names no model: expected model = 'NAME'"),
    "no model over gRPC": ("grpc", "pass", "Ask names no model"),
    "wrong shape": ("http", "model, samples = 'linear', 'shape.npz'", "input x: got shape (1, 3)"),
    "wrong type": ("grpc", "model, samples = 'linear', 'type.npz'", "input x: got float64"),
    "wrong line": ("http", "model, samples = 'linear', 'line.jsonl'", "line 2: Model linear, input x"),
    "no file": ("http", "model, samples = 'linear', 'missing.npz'", "Cannot read the samples missing.npz"),
    "no size": ("http", "model, batch_sizes = 'linear', {0: 1}", "Ask has batch_sizes = {0: 1}"),
    "size above the model's": ("http", "model, batch_sizes = 'linear', {64: 1}", "a batch of 64; expected 1 to 8"),
    "no weight": ("http", "model, priorities = 'linear', {1: 0}", "Ask has priorities = {1: 0}"),
}


@pytest.mark.triton
def test_a_mistake_is_one_sentence_and_exit_code_2(server: EmbeddedServer, tmp_path: Path) -> None:
    """Whatever is wrong with the class or its samples: said once for all users, before anything is sent."""
    running = {}
    for name, (protocol, lines, _) in MISTAKES.items():
        folder = tmp_path / name
        folder.mkdir()
        np.savez(folder / "shape.npz", x=np.ones((4, 3), np.float32))
        np.savez(folder / "type.npz", x=np.ones((4, 4)))
        (folder / "line.jsonl").write_text('{"x": [1, 2, 3, 4]}\n{"x": [1]}\n', encoding="utf-8")
        url, kind = (server.http_url, "TritonHttpUser") if protocol == "http" else (server.grpc_url, "TritonGrpcUser")
        running[name] = started(
            folder, url, f"class Ask({kind}):\n    {lines}{TASK}", "-u", "4", "-r", "4", "-t", "30s"
        )
    problems = {}
    for name, process in running.items():
        said = said_by(process)
        errors = [line for line in said.splitlines() if line.startswith("error: ")]
        sound = process.returncode == 2 and len(errors) == 1 and "Traceback" not in said
        if not sound or MISTAKES[name][2] not in errors[0] or seen_in(tmp_path / name) != ([], 0):
            problems[name] = said
    assert not problems, "\n".join(f"{name}:\n{said}" for name, said in problems.items())
