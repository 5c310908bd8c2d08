"""An .onnx file that exists already is taken over with its weights, and samples are given or made up."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import helper

from tritonbatch.errors import ExportRejected
from tritonbatch.export import onnx_file
from tritonbatch.export.build import build_from_file
from tritonbatch.models.model import Arrays, TensorSpec


def _graph(write_graph: Callable[..., Path], operator: str) -> Path:
    return write_graph([helper.make_node(operator, ["x"], ["y"])], ["batch", 4, "length"], ["batch", 4, "length"])


def test_a_file_is_taken_over_and_skipped_the_second_time(write_graph: Callable[..., Path], tmp_path: Path) -> None:
    """An .onnx file gives its tensors from the graph, made-up samples and no parity."""
    source = _graph(write_graph, "Relu")
    folder = tmp_path / "repository" / "given"
    first, second = (build_from_file(source, folder, max_batch_size=8) for _ in range(2))
    assert (first.rebuilt, second.rebuilt) == (True, False)
    assert first.inputs == second.inputs == (TensorSpec("x", "TYPE_FP32", (4, -1)),)
    assert first.verification.parity == ()
    assert json.loads((folder / "1" / "export.json").read_text())["model"] == "given.onnx"


def test_a_size_that_is_fixed_in_the_graph_stays_fixed(write_graph: Callable[..., Path], tmp_path: Path) -> None:
    """Logits of [-1, 256, 25] get the dims [256, 25], which Triton compares, and not a free size."""
    nodes = [helper.make_node("Relu", ["x"], ["y"])]
    source = write_graph(nodes, ["batch", 256, 25], ["batch", 256, 25])
    assert build_from_file(source, tmp_path / "given", max_batch_size=2).outputs[0].dims == (256, 25)


def _with_external_weights(path: Path) -> None:
    module = torch.nn.Linear(64, 64)
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["batch", 64])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, ["batch", 64])
    weights = onnx.numpy_helper.from_array(module.weight.detach().numpy(), "weights")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "weights"], ["y"])], "graph", [x], [y], [weights])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin")


def test_weights_in_another_file_come_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They move into model.onnx if they fit, and beside it if not; a change in them counts."""
    source, folder = tmp_path / "source" / "given.onnx", tmp_path / "given"
    source.parent.mkdir()
    _with_external_weights(source)
    build_from_file(source, folder, max_batch_size=4)
    assert sorted(path.name for path in (folder / "1").iterdir()) == ["export.json", "model.onnx"]

    monkeypatch.setattr(onnx_file, "INLINE_LIMIT_BYTES", 1000)
    _with_external_weights(source)
    for _ in range(2):
        built = build_from_file(source, folder, max_batch_size=4)
    assert not built.rebuilt
    weights, *others = sorted(path.name for path in (folder / "1").glob("weights-*.bin"))
    assert not others
    assert list(json.loads((folder / "1" / "export.json").read_text())["sha256"]) == ["model.onnx", weights]


def test_missing_weights_are_rejected(tmp_path: Path) -> None:
    """A file whose weights were left behind says so."""
    _with_external_weights(tmp_path / "given.onnx")
    (tmp_path / "weights.bin").unlink()
    with pytest.raises(ExportRejected, match=r"weights\.bin"):
        build_from_file(tmp_path / "given.onnx", tmp_path / "given", max_batch_size=4)


def test_own_samples_are_used_for_a_file(write_graph: Callable[..., Path], tmp_path: Path) -> None:
    """Rows that make sense to the model replace the made-up ones."""

    def sample(batch: int, rng: np.random.Generator) -> Arrays:
        return {"x": rng.random((batch, 4, 5), dtype=np.float32) + 7}

    build_from_file(_graph(write_graph, "Sqrt"), tmp_path / "given", max_batch_size=8, sample=sample)
    with np.load(tmp_path / "given" / "samples.npz") as samples:
        assert samples["x"].shape == (64, 4, 5)
        assert samples["x"].min() >= 7


def test_the_sample_seed_is_fixed(write_graph: Callable[..., Path], tmp_path: Path) -> None:
    """Two exports of a model give the same sample file, byte for byte."""
    for name in ("one", "two"):
        build_from_file(_graph(write_graph, "Relu"), tmp_path / name, max_batch_size=2)
    assert (tmp_path / "one" / "samples.npz").read_bytes() == (tmp_path / "two" / "samples.npz").read_bytes()
