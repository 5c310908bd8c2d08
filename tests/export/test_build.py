"""An export is complete or absent, is skipped when nothing changed, and describes itself."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from onnx import helper

from tritonbatch.errors import ExportRejected, InvalidInput
from tritonbatch.export.build import build_from_file, build_version
from tritonbatch.models import data_types
from tritonbatch.models.model import Arrays, Model, TensorSpec


class Scale(torch.nn.Module):
    """Multiplies by a number that is no weight."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To [batch, 4]."""
        return x * self.factor


def _files(folder: Path) -> dict[str, str]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


def test_a_built_in_model_exports_and_verifies(exported: Any) -> None:
    """Each built-in model agrees with torch at every batch size, far inside the tolerance."""
    verification = exported.first.verification
    assert exported.first.rebuilt
    assert [difference.batch for difference in verification.parity] == [1, 2, 8, 16]
    assert max(difference.absolute for difference in verification.parity) < 1e-4
    assert verification.invariance.absolute < 1e-4
    assert set(_files(exported.model_directory)) == {"1/model.onnx", "1/export.json", "samples.npz"}


def test_the_second_build_is_skipped(exported: Any) -> None:
    """A current version is recognised in a fraction of a second and described alike."""
    first, second = exported.first, exported.second
    assert not second.rebuilt
    assert second.seconds < 1
    assert (second.path, second.inputs, second.outputs) == (first.path, first.inputs, first.outputs)
    assert second.verification == first.verification


def test_the_samples_fit_the_inputs(exported: Any) -> None:
    """samples.npz holds 64 rows of every input in its type."""
    with np.load(exported.model_directory / "samples.npz") as samples:
        assert sorted(samples) == sorted(spec.name for spec in exported.first.inputs)
        for spec in exported.first.inputs:
            assert len(samples[spec.name]) == 64
            sizes = zip(samples[spec.name].shape[1:], spec.dims, strict=True)
            assert all(expected in (-1, size) for size, expected in sizes)
            assert data_types.holds(samples[spec.name], spec.data_type)


def test_the_file_quotes_no_path_of_this_machine(exported: Any) -> None:
    """The exporter's notes on source files are gone."""
    assert str(Path(torch.__file__).parents[1]).encode() not in exported.first.path.read_bytes()


def test_the_record_says_what_was_made_from_what(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """export.json has hashes, versions, tensors and the figures of the verification."""
    built = build_version(make_model(Scale(2)), tmp_path / "tiny", max_batch_size=4)
    record = json.loads((tmp_path / "tiny" / "1" / "export.json").read_text())
    assert record["sha256"] == {"model.onnx": hashlib.sha256(built.path.read_bytes()).hexdigest()}
    assert {"torch", "onnx", "tritonbatch"} <= record["versions"].keys()
    assert record["opset"] == 18
    assert record["outputs"] == [{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}]
    assert [entry["batch"] for entry in record["verification"]["parity"]] == [1, 2, 4]
    assert record["created"].endswith("+00:00")


def _corrupt_model(folder: Path) -> None:
    with (folder / "1" / "model.onnx").open("r+b") as file:
        file.truncate(10)


def _corrupt_record(folder: Path) -> None:
    (folder / "1" / "export.json").write_text("{")


def _old_record(folder: Path) -> None:
    (folder / "1" / "export.json").write_text('{"fingerprint": "x"}')


def _remove_samples(folder: Path) -> None:
    (folder / "samples.npz").unlink()


@pytest.mark.parametrize("damage", [_corrupt_model, _corrupt_record, _old_record, _remove_samples])
def test_a_damaged_version_is_rebuilt(
    write_graph: Callable[..., Path], tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Whatever is no longer as it was written is written again, with the same bytes."""
    source, folder = _graph(write_graph, "Relu"), tmp_path / "given"
    built = build_from_file(source, folder, max_batch_size=4)
    before = built.path.read_bytes()
    damage(folder)
    assert build_from_file(source, folder, max_batch_size=4).rebuilt
    assert built.path.read_bytes() == before
    assert (folder / "samples.npz").exists()


@pytest.mark.parametrize(
    ("factor", "max_batch_size", "rebuilt"), [(2, 8, False), (2, 4, False), (2, 16, True), (3, 8, True)]
)
def test_only_a_change_is_exported_again(
    make_model: Callable[..., Model], tmp_path: Path, factor: float, max_batch_size: int, *, rebuilt: bool
) -> None:
    """A setting that is no weight counts, and so does a batch size beyond the verified one."""
    build_version(make_model(Scale(2)), tmp_path / "tiny", max_batch_size=8)
    engine = tmp_path / "tiny" / "1" / "model.plan"
    engine.write_bytes(b"derived from the first model")
    again = build_version(make_model(Scale(factor)), tmp_path / "tiny", max_batch_size=max_batch_size)
    assert again.rebuilt == rebuilt
    assert engine.exists() != rebuilt


def test_a_failed_export_leaves_the_version_in_place(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """A rejected model changes no file of the version before it."""
    build_version(make_model(Scale(2)), tmp_path / "tiny", max_batch_size=4)
    before = _files(tmp_path)
    with pytest.raises(ExportRejected):
        build_version(make_model(torch.nn.Softmax(dim=0)), tmp_path / "tiny", max_batch_size=4)
    assert _files(tmp_path) == before


KILLED = """
import os, signal, sys
from pathlib import Path
from tritonbatch.export.build import build_from_file

def die(step):
    if step == sys.argv[3]:
        os.kill(os.getpid(), signal.SIGKILL)

build_from_file(Path(sys.argv[1]), Path(sys.argv[2]), max_batch_size=8, progress=die)
"""


@pytest.mark.parametrize("step", ["verify", "move into place"])
def test_a_killed_export_leaves_the_version_in_place(
    write_graph: Callable[..., Path], tmp_path: Path, step: str
) -> None:
    """A process killed in the middle changes no visible file, and the next export clears up after it."""
    folder = tmp_path / "repository" / "given"
    build_from_file(_graph(write_graph, "Relu"), folder, max_batch_size=8)
    before = _files(folder)
    source = _graph(write_graph, "Neg")

    done = subprocess.run([sys.executable, "-c", KILLED, str(source), str(folder), step], check=False)
    assert done.returncode == -signal.SIGKILL
    left = [path for path in folder.iterdir() if path.name.startswith(".build-")]
    assert len(left) == 1
    assert {name: hashed for name, hashed in _files(folder).items() if not name.startswith(".build-")} == before

    assert build_from_file(source, folder, max_batch_size=8).rebuilt
    assert sorted(path.name for path in folder.iterdir()) == ["1", "samples.npz"]


def test_two_exports_at_once_do_the_work_once(write_graph: Callable[..., Path], tmp_path: Path) -> None:
    """The second export of a model waits for the first and then finds it current."""
    source, folder = _graph(write_graph, "Relu"), tmp_path / "repository" / "given"
    command = (
        "import sys; from pathlib import Path; from tritonbatch.export.build import build_from_file; "
        "print(build_from_file(Path(sys.argv[1]), Path(sys.argv[2]), max_batch_size=8).rebuilt)"
    )
    arguments = [sys.executable, "-c", command, str(source), str(folder)]
    running = [subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    printed = [process.communicate(timeout=60)[0].strip() for process in running]
    assert sorted(printed) == ["False", "True"]


def test_another_version_stands_beside_the_first(write_graph: Callable[..., Path], tmp_path: Path) -> None:
    """Versions are folders of their own that the server's user can read."""
    for version in (1, 2):
        build_from_file(_graph(write_graph, "Relu"), tmp_path / "given", max_batch_size=2, version=version)
        mode = (tmp_path / "given" / str(version)).stat().st_mode & 0o777
        assert mode == 0o777 & ~_umask()
    assert sorted(path.name for path in (tmp_path / "given").iterdir()) == ["1", "2", "samples.npz"]


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


@pytest.mark.parametrize(
    ("max_batch_size", "version", "words"), [(0, 1, "max_batch_size is 0"), (1, 0, "version is 0")]
)
def test_numbers_below_one_are_invalid(
    make_model: Callable[..., Model], tmp_path: Path, max_batch_size: int, version: int, words: str
) -> None:
    """Sizes and versions count from 1."""
    with pytest.raises(InvalidInput, match=words):
        build_version(make_model(Scale(1)), tmp_path / "tiny", max_batch_size=max_batch_size, version=version)


def test_a_folder_that_is_a_file_is_invalid(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """A model directory that cannot be made is the caller's to change."""
    (tmp_path / "tiny").write_text("in the way")
    with pytest.raises(InvalidInput, match=r"cannot write to .*tiny"):
        build_version(make_model(Scale(1)), tmp_path / "tiny", max_batch_size=2)


def test_an_export_prints_nothing(
    make_model: Callable[..., Model], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The exporter's remarks stay off the terminal; the steps go to the progress function."""
    steps: list[str] = []
    build_version(make_model(Scale(2)), tmp_path / "tiny", max_batch_size=2, progress=steps.append)
    assert capfd.readouterr() == ("", "")
    assert steps == ["compute the fingerprint", "write ONNX", "verify", "move into place"]


class Pair(torch.nn.Module):
    """Two outputs by name from two inputs that share a free length."""

    def forward(self, first: torch.Tensor, second: torch.Tensor) -> dict[str, torch.Tensor]:
        """The sum [batch, length] and the largest of each row [batch, 1]."""
        return {"sum": first + second, "largest": (first * second).amax(dim=1, keepdim=True)}


def test_odd_names_free_sizes_and_several_outputs_survive(tmp_path: Path) -> None:
    """Names with slashes, dots and colons, a name like a keyword, free sizes and a dict of outputs go through."""

    def sample(batch: int, rng: np.random.Generator) -> Arrays:
        return {name: rng.random((batch, 6), dtype=np.float32) for name in ("file", "a/b.1:0")}

    model = Model(
        name="pair",
        module=Pair(),
        inputs=(TensorSpec("file", "TYPE_FP32", (-1,)), TensorSpec("a/b.1:0", "TYPE_FP32", (-1,))),
        outputs=(TensorSpec("sum.0", "TYPE_FP32", (-1,)), TensorSpec("508", "TYPE_FP32", (1,))),
        sample=sample,
        purpose="a test",
    )
    built = build_version(model, tmp_path / "pair", max_batch_size=4)
    assert (built.inputs, built.outputs) == (model.inputs, model.outputs)
    with np.load(tmp_path / "pair" / "samples.npz") as samples:
        assert sorted(samples) == ["a/b.1:0", "file"]


def _graph(write_graph: Callable[..., Path], operator: str) -> Path:
    return write_graph([helper.make_node(operator, ["x"], ["y"])], ["batch", 4, "length"], ["batch", 4, "length"])
