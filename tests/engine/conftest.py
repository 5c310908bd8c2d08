"""A small exported model in a repository, with every variant."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritonbatch.export.build import build_from_file
from tritonbatch.models.model import Arrays
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.layout import write_variants
from tritonbatch.repository.variants import DynamicBatching, standard_variants


def _two_layers(path: Path) -> None:
    rng = np.random.default_rng(0)
    weights = [(rng.standard_normal(shape) / 8).astype(np.float32) for shape in ((64, 64), (64, 8))]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w0"], ["h0"]),
            helper.make_node("Relu", ["h0"], ["h1"]),
            helper.make_node("MatMul", ["h1", "w1"], ["y"]),
        ],
        "layers",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 8])],
        [numpy_helper.from_array(array, f"w{i}") for i, array in enumerate(weights)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def _sample(batch: int, rng: np.random.Generator) -> Arrays:
    return {"x": rng.standard_normal((batch, 64), dtype=np.float32)}


@pytest.fixture
def exported_repository(tmp_path: Path) -> Path:
    """A repository with the model `layers` ([64] to [8]): max_batch_size 32, preferred sizes 4 and 16."""
    source = tmp_path / "layers.onnx"
    _two_layers(source)
    folder = tmp_path / "repository" / "layers"
    built = build_from_file(source, folder, max_batch_size=32, sample=_sample)
    stem = onnx_config("layers", built.inputs, built.outputs, max_batch_size=32, instances=Instances())
    write_variants(folder, standard_variants(stem, 16, DynamicBatching(preferred_batch_sizes=(4, 16))))
    return folder.parent
