"""The embedded Triton as a library: ready, correct, clear when it fails, and gone when it should be."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from tritonbatch.client import Client
from tritonbatch.errors import InvalidInput, NotSupported, ServerFailed
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.server import EmbeddedServer, Ports, provision
from tritonbatch.server.log import error_lines

pytestmark = pytest.mark.triton

GONE_S = 20.0


def members(session: int) -> list[psutil.Process]:
    """Every live process of a session: the guard's, which holds server and stubs."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getsid(process.pid) == session and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (ProcessLookupError, psutil.NoSuchProcess):
            continue
    return found


def wait_until_gone(session: int) -> list[psutil.Process]:
    """What is left of a session after a while; nothing, if all is well."""
    deadline = time.monotonic() + GONE_S
    while (left := members(session)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def prefix_of(session: int) -> str:
    """How the names of a server's shared memory begin; other servers may be running."""
    lines = [" ".join(process.cmdline()) for process in members(session)]
    return re.search(r"shm-region-prefix-name=(\w+)", "\n".join(lines)).group(1)


def shared_memory(prefix: str) -> list[str]:
    """The shared memory regions of one server."""
    return [path.name for path in Path("/dev/shm").glob(f"{prefix}*")]  # noqa: S108


def test_two_servers_at_once_serve_their_own_variant_and_leave_nothing(repository: Path) -> None:
    """Servers on free ports do not disturb each other; after the block no process, folder or shared memory is left."""
    with (
        EmbeddedServer(repository, config_name="serial", models=["linear"]) as one,
        EmbeddedServer(repository, config_name="static", models=["linear"]) as two,
        Client(one.http_url) as to_one,
        Client(two.grpc_url, protocol="grpc") as to_two,
    ):
        assert to_one.config("linear").max_batch_size == 1
        assert to_two.config("linear").max_batch_size == 4
        x = np.ones((4, 4), np.float32)
        weights = np.arange(12, dtype=np.float32).reshape(4, 3)
        np.testing.assert_allclose(to_two.infer("linear", {"x": x})["y"], x @ weights)
        sessions = [one._guard.pid, two._guard.pid]
        folders = [one._folder, two._folder]
        prefixes = [prefix_of(session) for session in sessions]
        assert all(shared_memory(prefix) for prefix in prefixes)
        assert all(len(members(session)) == 3 for session in sessions), "guard, tritonserver and one stub each"
    assert [members(session) for session in sessions] == [[], []]
    assert not any(folder.exists() for folder in folders)
    assert [shared_memory(prefix) for prefix in prefixes] == [[], []]


@pytest.mark.parametrize("victim", ["parent", "guard", "server"])
def test_nothing_outlives_a_kill_9(repository: Path, victim: str) -> None:
    """Whoever is killed outright, parent, guard or server, every process of the server ends and memory is freed."""
    code = (
        "import sys, time; from pathlib import Path; from tritonbatch.server import EmbeddedServer\n"
        "with EmbeddedServer(Path(sys.argv[1]), models=['linear']) as server:\n"
        "    print(server._guard.pid, server._folder, flush=True); time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(repository)], stdout=subprocess.PIPE, text=True)
    try:
        number, folder = parent.stdout.readline().split()
        guard = int(number)
        server = next(p.pid for p in members(guard) if p.ppid() == guard)
        prefix = prefix_of(guard)
        os.kill({"parent": parent.pid, "guard": guard, "server": server}[victim], signal.SIGKILL)
        left = wait_until_gone(guard)
    finally:
        parent.kill()
        parent.wait(10)
    assert left == []
    assert victim != "parent" or not Path(folder).exists(), "nobody else could remove it"
    if victim != "guard":  # with its guard killed outright, nobody is left to sweep the memory
        assert shared_memory(prefix) == []


def broken(repository: Path, tmp_path: Path, old: str, new: str) -> Path:
    """A copy of `linear` with *old* replaced by *new* in its config.pbtxt."""
    shutil.copytree(repository / "linear", tmp_path / "repo" / "linear")
    path = tmp_path / "repo" / "linear" / "config.pbtxt"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    return tmp_path / "repo"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('backend: "onnxruntime"', 'backend: "nonsense"', "nonsense"),
        ("dims: 4", "dims: 0", "dimension"),
        ("dynamic_batching {\n}", "dynamic_batching { preferred_batch_size: 99 }", "preferred size"),
        ("KIND_CPU", "KIND_GPU", "GPU"),
        ("max_batch_size", "max_batch_sise", "max_batch_sise"),
    ],
)
def test_a_failed_start_shows_the_servers_own_line(
    repository: Path, tmp_path: Path, old: str, new: str, says: str
) -> None:
    """What is wrong with a configuration is in the message, in the server's words."""
    started = time.monotonic()
    with (
        pytest.raises(ServerFailed, match=f"did not start: .*{says}"),
        EmbeddedServer(broken(repository, tmp_path, old, new)),
    ):
        pytest.fail("it started")
    assert time.monotonic() - started < 60, "it waited for a server that was already gone"


def test_a_model_file_that_is_no_model_is_named(repository: Path, tmp_path: Path) -> None:
    """A damaged model.onnx fails the start with the reason that ONNX Runtime gives."""
    shutil.copytree(repository / "linear", tmp_path / "linear")
    (tmp_path / "linear" / "1" / "model.onnx").write_bytes(b"not a model")
    with pytest.raises(ServerFailed, match=r"model\.onnx"), EmbeddedServer(tmp_path):
        pytest.fail("it started")


@pytest.mark.parametrize(
    ("folder", "models", "says"),
    [
        ("missing", [], "No model repository at"),
        (".", ["ghost"], "No model 'ghost' in .*: it holds echo, gather, linear, scalar"),
    ],
)
def test_a_wrong_repository_is_a_mistake_not_a_failure(
    repository: Path, folder: str, models: list[str], says: str
) -> None:
    """A folder or model that is not there is said before anything is started."""
    with pytest.raises(InvalidInput, match=says):
        EmbeddedServer(repository / folder, models=models).start()


def test_a_taken_port_is_named(repository: Path) -> None:
    """Asking for a port that someone holds gives its number and the flag to change."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(InvalidInput, match=f"Port {port} is taken .*--grpc-port.*stopped just now"):
            EmbeddedServer(repository, ports=Ports(grpc=port)).start()


def test_inputs_of_no_elements_are_answered(tmp_path: Path) -> None:
    """Items of a free size may be empty: they come back with the shape that they have, among others that are not."""
    shape = ["batch", "n", 3]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "free", [x], [y])
    (tmp_path / "free" / "1").mkdir(parents=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, tmp_path / "free" / "1" / "model.onnx")
    tensors = [TensorSpec(name, "TYPE_FP32", (-1, 3)) for name in "xy"]
    config = onnx_config("free", tensors[:1], tensors[1:], max_batch_size=8, instances=Instances())
    (tmp_path / "free" / "config.pbtxt").write_text(config_text(config, "free"))
    with EmbeddedServer(tmp_path) as server, Client(server.http_url) as client:
        for sizes in ((2, 0, 3), (1, 0, 3), (2, 1, 3)):
            sent = np.ones(sizes, np.float32)
            np.testing.assert_array_equal(client.infer("free", {"x": sent})["y"], sent, strict=True)


def test_a_server_that_died_is_noticed(repository: Path) -> None:
    """check_alive raises with the exit code once the server has gone."""
    with EmbeddedServer(repository, models=["linear"]) as server:
        server.check_alive()
        process = next(p for p in members(server._guard.pid) if p.ppid() == server._guard.pid)
        process.kill()
        server._guard.wait(10)
        with pytest.raises(ServerFailed, match="stopped by itself"):
            server.check_alive()


@pytest.mark.parametrize(
    ("system", "machine", "libc", "says"),
    [
        ("Darwin", "arm64", ("", ""), "needs Linux on x86_64, this is Darwin on arm64"),
        ("Linux", "aarch64", ("glibc", "2.36"), "this is Linux on aarch64"),
        ("Linux", "x86_64", ("glibc", "2.31"), "needs glibc 2.35 or later, this system has glibc 2.31"),
        ("Linux", "x86_64", ("", ""), "this system has no glibc"),
    ],
)
def test_where_the_wheel_cannot_run_the_error_offers_another_way(
    monkeypatch: pytest.MonkeyPatch, system: str, machine: str, libc: tuple[str, str], says: str
) -> None:
    """On another system the message says what is missing and offers Docker or --url."""
    monkeypatch.setattr(provision.platform, "system", lambda: system)
    monkeypatch.setattr(provision.platform, "machine", lambda: machine)
    monkeypatch.setattr(provision.platform, "libc_ver", lambda: libc)
    with pytest.raises(NotSupported, match=f"{says}.*Docker.*--url"):
        provision.check_machine()


def test_a_missing_runtime_says_how_to_get_it(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without the runtime the message names where it looked and the command that fetches it."""
    monkeypatch.setenv("TRITONBATCH_RUNTIME", str(tmp_path / "nowhere"))
    with pytest.raises(NotSupported, match=r"nowhere.*make setup"):
        EmbeddedServer(repository).start()


def test_the_log_reader_finds_the_reason_among_noise() -> None:
    """The first meaningful error line is shown, not the one that every machine without a GPU prints."""
    log = (
        'E1130 08:18:30.1 1 cuda.cc:1] "CudaDriverHelper has not been initialized."\nerror: creating server: because\n'
    )
    assert error_lines(log) == "creating server: because"
    assert error_lines("") == "it printed nothing"
