"""A job as its users run it: the command in a process, input files, and the answers that are right."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from onnx import TensorProto, helper

from tritonbatch.server import EmbeddedServer

COMMAND = str(Path(sys.executable).parent / "tritonbatch")
ENVIRONMENT = {**os.environ, "COLUMNS": "160", "TERM": "dumb"}
TIMEOUT_S = 60.0
PYTHON_MODEL = Path(__file__).parents[1] / "client" / "models" / "model.py"
CONFIG = """\
backend: "{backend}"
max_batch_size: 8
instance_group {{ kind: KIND_CPU count: 1 }}
input {{ name: "x" data_type: TYPE_FP32 dims: [{dims}] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [{dims}] }}
"""

Floats = npt.NDArray[np.float32]
Start = Callable[[Sequence[str], Path], subprocess.Popen[str]]
Batch = Callable[[Sequence[str], Path], tuple[int, str]]
Wait = Callable[[subprocess.Popen[str], Path, int], None]
Lines = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def start_batch() -> Iterator[Start]:
    """Start ``tritonbatch batch`` with arguments in a folder; what still runs after the test is killed."""
    started: list[subprocess.Popen[str]] = []

    def start(arguments: Sequence[str], cwd: Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [COMMAND, "batch", *arguments],
            cwd=cwd,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_batch(start_batch: Start) -> Batch:
    """Run ``tritonbatch batch`` to its end: its exit code and all that it printed."""

    def run(arguments: Sequence[str], cwd: Path) -> tuple[int, str]:
        process = start_batch(arguments, cwd)
        said, _ = process.communicate(timeout=TIMEOUT_S)
        return process.returncode, said

    return run


@pytest.fixture(scope="session")
def wait_for_parts() -> Wait:
    """Wait until so many parts of an output are finished while the process still runs."""

    def wait(process: subprocess.Popen[str], output: Path, count: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while len(list(output.with_name(f"{output.name}.parts").glob("part-*[0-9].json"))) < count:
            assert process.poll() is None, "it ended before it could be disturbed"
            assert time.monotonic() < deadline, "no parts in time"
            time.sleep(0.01)

    return wait


@pytest.fixture(scope="session")
def floats() -> Callable[[int], Floats]:
    """So many inputs for the model `linear`."""
    return _floats


@pytest.fixture(scope="session")
def weights() -> Floats:
    """The model `linear`: what its inputs are multiplied with."""
    return np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="session")
def lines() -> Lines:
    """Read the objects of a JSONL file."""
    return lambda path: [json.loads(line) for line in path.read_text().splitlines()]


@pytest.fixture(scope="session")
def write_lines() -> Callable[[Path, Sequence[Any]], None]:
    """Write a JSONL file; a string is a line as it is."""
    return _write_lines


def _floats(rows: int) -> Floats:
    return np.random.default_rng(7).random((rows, 4), np.float32)


def _write_lines(path: Path, items: Sequence[Any]) -> None:
    path.write_text("".join(f"{item if isinstance(item, str) else json.dumps(item)}\n" for item in items))


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    """The same 1300 rows for `linear` in every format, as files and as folders of parts."""
    x = _floats(1300)
    ids = [f"item-{row}" for row in range(len(x))]
    np.save(tmp_path / "rows.npy", x)
    nested = pa.array(x.astype(float).tolist())
    pq.write_table(pa.table({"label": ids, "x": nested, "id": ids}), tmp_path / "rows.parquet", row_group_size=300)
    items = [{"id": id_, "x": row} for id_, row in zip(ids, x.tolist(), strict=True)]
    _write_lines(tmp_path / "rows.jsonl", items)
    for kind in ("npy", "parquet", "jsonl"):
        (tmp_path / f"{kind}_parts").mkdir()
    for number, span in enumerate((slice(0, 500), slice(500, 501), slice(501, 1300))):
        np.save(tmp_path / "npy_parts" / f"{number}.npy", x[span])
        table = pa.table({"x": pa.FixedSizeListArray.from_arrays(pa.array(x[span].reshape(-1)), 4), "id": ids[span]})
        pq.write_table(table, tmp_path / "parquet_parts" / f"{number}.parquet")
        _write_lines(tmp_path / "jsonl_parts" / f"{number}.jsonl", items[span])
    (tmp_path / "parquet_parts" / "_SUCCESS").touch()
    return tmp_path


@pytest.fixture(scope="session")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Two Python models that give x back unless it is over 9, and `wide`, whose items and answers have 16 KiB.

    At 10, `failing` fails, and `crash` ends its process.
    """
    folder = tmp_path_factory.mktemp("offline_repository")
    for name, backend, dims in (("failing", "python", 1), ("crash", "python", 1), ("wide", "onnxruntime", 4096)):
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(backend=backend, dims=dims))
        if backend == "python":
            shutil.copyfile(PYTHON_MODEL, folder / name / "1" / "model.py")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4096]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "wide", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(model, folder / "wide" / "1" / "model.onnx")
    with EmbeddedServer(folder, models=["failing", "crash", "wide"]) as running:
        yield running
        # It would wait for the instances whose process died until its exit timeout.
        assert running._guard is not None
        for child in psutil.Process(running._guard.pid).children(recursive=True):
            if child.name() == "tritonserver":
                child.kill()
