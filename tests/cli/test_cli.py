"""The command line as its users meet it: a process, its output, its exit code, and what it leaves behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import onnx
import psutil
import pytest
from onnx import TensorProto, helper

from tritonbatch.observe.read import read_comparison
from tritonbatch.server import EmbeddedServer

COMMAND = str(Path(sys.executable).parent / "tritonbatch")
ENVIRONMENT = {**os.environ, "COLUMNS": "120", "TERM": "dumb"}


def run(arguments: Sequence[str], cwd: Path, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the installed command in *cwd*."""
    return subprocess.run(
        [COMMAND, *arguments],
        cwd=cwd,
        env={**ENVIRONMENT, "TRITONBATCH_RUNTIME": str(Path(sys.prefix).parent / ".triton")},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


def descendants_gone(process: psutil.Process, children: list[psutil.Process], timeout_s: float = 20) -> list[str]:
    """What is still alive of *process* and its *children* after a while."""
    _, alive = psutil.wait_procs([process, *children], timeout=timeout_s)
    return [" ".join(each.cmdline()) for each in alive if each.status() != psutil.STATUS_ZOMBIE]


EXPLAINED = (
    *("export", "rollback", "lint", "diff", "tensorrt", "serve", "compare", "load", "max-rate", "gate"),
    *("report", "batch"),
)


def test_help_teaches(tmp_path: Path) -> None:
    """--help names every verb, what they are for and the exit codes; each verb's help has an example."""
    text = run(["--help"], tmp_path).stdout
    for verb in (*EXPLAINED, "demo"):
        assert verb in text
    assert "Exit codes: 0 done" in text
    for verb in EXPLAINED:
        assert f"tritonbatch {verb} " in run([verb, "--help"], tmp_path).stdout.replace("Usage: tritonbatch", "")


def test_help_is_fast_because_heavy_imports_are_lazy(tmp_path: Path) -> None:
    """Showing help loads neither torch, nor ONNX Runtime, nor Locust with its patching of the standard library."""
    code = (
        "import sys; sys.argv = ['tritonbatch', '--help']\nfrom tritonbatch.cli.main import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'torch', 'onnxruntime', 'transformers', 'sklearn', 'locust', 'onnx'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["export", "rankin_mlp"], "did you mean 'ranking_mlp'"),
        (["export", "nowhere.at:all"], "nowhere"),
        (["export", "missing.onnx"], r"missing\.onnx"),
        (["export", "digits", "--max-batch-size", "1"], "max_batch_size is 1: expected at least 2"),
        (
            ["export", "digits", "--max-batch-size", "8", "--static-batch", "9"],
            "static batch size is 9: expected 1 to 8",
        ),
        (["export", "digits", "--max-batch-size", "8", "--preferred", "16"], "preferred batch size is 16"),
        (["export", "digits", "--queue-delay-us", "-1"], "queue delay is -1"),
        (["export", "digits", "--name", "a/b"], "Model name 'a/b' cannot be used"),
        (["export", "digits", "minilm", "--name", "x"], "--name is 'x' for 2 models"),
        (["export", "digits", "--instances", "0"], "instance count is 0"),
        (["serve", "nowhere"], "No model repository at .*nowhere"),
        (["compare", "nowhere"], "No model repository at nowhere"),
        (["compare", "--url", "localhost:9", "--model", "m"], "No Triton is ready at localhost:9"),
        (["compare", "--url", "https://localhost:9", "--model", "m"], "expected HOST:PORT"),
        (["compare", "--url", "localhost:9"], "at least one --model NAME"),
        (["compare", "--protocol", "ftp"], "protocol is 'ftp': expected http or grpc"),
        (["report", "nowhere"], "No folder nowhere"),
        (["report"], "No comparison in"),
        (["report", "."], r"manifest\.json"),
    ],
)
def test_a_users_mistake_is_one_sentence_and_exit_code_2(tmp_path: Path, arguments: list[str], says: str) -> None:
    """What, got, expected and the next step on one line of stderr, never a traceback, and nothing is written."""
    result = run(arguments, tmp_path)
    assert result.returncode == 2, result.stderr
    assert re.search(says, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert len([line for line in result.stderr.splitlines() if line.strip()]) == 1, result.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.triton
@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--variants", "serial,turbo"], "No variant 'turbo' of linear .* it has dynamic, serial, static"),
        (["--variants", "serial,serial"], "expected different names"),
        (["--model", "ghost"], "No variant 'serial' of ghost"),
        (["--rate", "0"], "The rate is 0.0: expected a number above 0"),
        (["--rate", "nan"], "The rate is nan: expected a number above 0"),
        (["--rate", "5", "--seconds", "-1"], "The duration is -1.0: expected a number above 0"),
        (["--rate", "1e9", "--seconds", "1"], "is 1e.09 requests: expected 1 to 5,000,000"),
        (["--rate", "1e-9"], "requests: expected 1 to"),
        (["--output", "/proc/nothing"], "Cannot write to /proc/nothing"),
        (["--seed", "-1"], "The seed is -1: expected 0 or more"),
        (["--samples", "missing.npz"], r"Cannot read the samples missing\.npz"),
    ],
)
def test_a_mistake_in_a_comparison_is_said(repository: Path, tmp_path: Path, arguments: list[str], says: str) -> None:
    """Unknown variants and models, impossible rates and missing files end with exit code 2 and one sentence."""
    base = [] if "--model" in arguments else ["--model", "linear"]
    result = run(["compare", str(repository), *base, *arguments], tmp_path)
    assert result.returncode == 2, result.stderr
    assert re.search(says, result.stderr), result.stderr
    assert "Traceback" not in result.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.triton
def test_compare_on_a_running_server_and_report_again(server: EmbeddedServer, tmp_path: Path) -> None:
    """--url drives a server that runs already; report prints the same table from the records, and rewrites the page."""
    url = server.http_url
    options = ["--model", "linear", "--static-batch", "4", "--rate", "200", "--seconds", "1", "--output", "out"]
    first = run(["compare", "--url", url, *options], tmp_path)
    assert first.returncode == 0, first.stderr
    for word in ("linear", "static-4", "served", "open loop", "mean"):
        assert word in first.stdout
    page = tmp_path / "out" / "report.html"
    page.unlink()
    again = run(["report", "out"], tmp_path)
    assert again.returncode == 0, again.stderr
    assert page.stat().st_size > 1_000_000
    assert again.stdout.strip() in first.stdout
    written = run(["report", "out", "--markdown"], tmp_path).stdout
    assert written.startswith("**linear**\n\n| load | variant |")
    assert written.count("\n| 200/s") == 2
    too_large = run(["compare", "--url", url, "--model", "linear", "--static-batch", "99"], tmp_path)
    assert too_large.returncode == 2
    assert "--static-batch is 99: expected 2 to 8" in too_large.stderr


@pytest.mark.triton
@pytest.mark.parametrize(("number", "times"), [(signal.SIGINT, 1), (signal.SIGTERM, 1), (signal.SIGTERM, 3)])
def test_serve_answers_until_it_is_told_to_stop(
    repository: Path, tmp_path: Path, number: signal.Signals, times: int
) -> None:
    """`serve` prints where it listens, serves the variant asked for, and ends after its Triton, however often told."""
    process = subprocess.Popen(
        [COMMAND, "serve", str(repository), "--variant", "serial", "--model", "linear"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        lines = [process.stdout.readline() for _ in range(2)]
        assert "Triton is ready" in lines[0]
        assert re.search(r"HTTP +http://localhost:\d+", lines[1])
        watched = psutil.Process(process.pid)
        children = watched.children(recursive=True)
        assert len(children) >= 3
        triton = next(child for child in children if child.name() == "tritonserver")
        for _ in range(times):
            process.send_signal(number)
            time.sleep(0.2)
        assert process.wait(30) == 128 + number
        assert not triton.is_running(), "it ended before Triton did"
        assert descendants_gone(watched, children) == []
    finally:
        process.kill()
        process.wait(10)


@pytest.mark.triton
def test_serve_refuses_a_variant_that_no_model_has(repository: Path, tmp_path: Path) -> None:
    """A mistyped variant is a mistake; one that some models lack is served, and those that lack it are listed."""
    result = run(["serve", str(repository), "--variant", "nope", "--model", "linear"], tmp_path)
    assert result.returncode == 2
    assert "No variant 'nope' of linear in" in result.stderr
    assert "expected dynamic, serial, static" in result.stderr
    for name in ("linear", "scalar"):
        shutil.copytree(repository / name, tmp_path / "repo" / name)
    (tmp_path / "repo" / "scalar" / "configs" / "serial.pbtxt").unlink()
    process = subprocess.Popen(
        [COMMAND, "serve", "repo", "--variant", "serial"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    try:
        said = "".join(process.stdout.readline() for _ in range(5))
        assert "Without serial, so with config.pbtxt: scalar\n" in said
        process.terminate()
        assert process.wait(30) == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait(10)


def test_an_export_over_a_model_of_other_inputs_says_so(tmp_path: Path) -> None:
    """What replaces a model that took other inputs is named, with the copy of its configuration; the same is silent."""
    for file, name in (("one.onnx", "x"), ("two.onnx", "features")):
        x = helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4])
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])
        graph = helper.make_graph([helper.make_node("Relu", [name], ["y"])], "relu", [x], [y])
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
        onnx.save(model, tmp_path / file)
    arguments = ["--name", "ranker", "--max-batch-size", "8", "--repository", "repo"]
    first, again, other = (run(["export", file, *arguments], tmp_path) for file in ("one.onnx", "one.onnx", "two.onnx"))
    assert "inputs changed" not in first.stdout + again.stdout
    assert "replaces version 1 of ranker (inputs changed); config.pbtxt.bak is the former one" in other.stdout
    assert (tmp_path / "repo" / "ranker" / "config.pbtxt.bak").exists()
    kept = run(["export", "one.onnx", "--keep", "2", *arguments], tmp_path)
    assert "version 2 differs from the former of ranker (inputs changed)" in kept.stdout


@pytest.mark.triton
def test_export_serve_and_compare_a_model_of_ones_own(tmp_path: Path) -> None:
    """A torch module by import path goes from a file in the current folder to a verdict, with nothing else set up."""
    (tmp_path / "mine.py").write_text(
        "import numpy as np, torch\n"
        "from tritonbatch.models.model import Model, TensorSpec\n\n"
        "def scorer():\n"
        "    torch.manual_seed(0)\n"
        "    return Model(name='scorer', module=torch.nn.Linear(6, 2).eval(),\n"
        "                 inputs=(TensorSpec('x', 'TYPE_FP32', (6,)),), \n"
        "                 outputs=(TensorSpec('score', 'TYPE_FP32', (2,)),),\n"
        "                 sample=lambda batch, rng: {'x': rng.standard_normal((batch, 6)).astype(np.float32)},\n"
        "                 purpose='a test')\n"
    )
    exported = run(["export", "mine:scorer", "--max-batch-size", "8", "--repository", "repo"], tmp_path)
    assert exported.returncode == 0, exported.stderr
    assert "parity with torch at batch 1, 2, 8: largest difference" in exported.stdout
    again = run(["export", "mine:scorer", "--max-batch-size", "8", "--repository", "repo"], tmp_path)
    assert "scorer: unchanged" in again.stdout
    compared = run(["compare", "repo", "--rate", "300", "--seconds", "1", "--output", "out"], tmp_path)
    assert compared.returncode == 0, compared.stderr
    assert "scorer" in compared.stdout
    assert {m.variant: m.failed for m in read_comparison(tmp_path / "out").measurements} == {
        "serial": 0,
        "static": 0,
        "dynamic": 0,
    }


def start_demo(cwd: Path) -> subprocess.Popen[str]:
    """The demo in a process group of its own, as a terminal would start it."""
    return subprocess.Popen(
        [COMMAND, "demo", "--seconds", "4", "--output", "out"],
        cwd=cwd,
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


@pytest.mark.triton
@pytest.mark.parametrize(
    "moment", ["export ranking_mlp: verify", "static: starting Triton", "static: ranking_mlp steady"]
)
def test_ctrl_c_in_the_demo_leaves_no_process_and_no_half_written_file(tmp_path: Path, moment: str) -> None:
    """Interrupted while exporting, while starting the server or under load, everything ends and every file is whole."""
    process = start_demo(tmp_path)
    try:
        for line in process.stdout:
            if line.startswith(moment):
                break
        else:
            pytest.fail(f"the demo ended before {moment!r}")
        time.sleep(0.7)
        watched = psutil.Process(process.pid)
        children = watched.children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(30) == 130, rest
        assert "Traceback" not in rest
        assert descendants_gone(watched, children) == []
    finally:
        process.kill()
        process.wait(10)
    hidden = [path for path in tmp_path.rglob(".*") if path.name != ".triton"]
    assert hidden == [], "a temporary file or folder was left"
    for model in (tmp_path / "model_repository").glob("*/1/model.onnx"):
        assert (model.parent / "export.json").exists()
    again = run(["report", "out"], tmp_path)
    assert again.returncode in {0, 2}
    assert "Traceback" not in again.stderr


@pytest.mark.triton
def test_the_demo_shows_what_batching_does(tmp_path: Path) -> None:
    """At saturation dynamic is ahead of serial, the verdict says so, and the page and the records are there."""
    process = start_demo(tmp_path)
    try:
        output = process.communicate(timeout=240)[0]
    finally:
        process.kill()
        process.wait(10)
    assert process.returncode == 0, output
    comparison = read_comparison(tmp_path / "out")
    runs = {(m.model, m.load.name, m.variant): m for m in comparison.measurements}
    assert len(runs) == 12
    assert [m.failed for m in runs.values()] == [0] * 12
    serial, dynamic = (runs["ranking_mlp", "saturating", variant] for variant in ("serial", "dynamic"))
    assert dynamic.throughput_per_s > 2 * serial.throughput_per_s
    assert dynamic.mean_batch > 16
    assert "Serve ranking_mlp with dynamic" in output
    assert (tmp_path / "out" / "report.html").exists()
    configs = sorted(path.name for path in (tmp_path / "model_repository" / "minilm" / "configs").iterdir())
    assert configs == ["dynamic.pbtxt", "serial.pbtxt", "static.pbtxt"]
