"""What every test may ask for: a small real repository, and one embedded Triton for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.layout import write_variants
from tritonbatch.repository.variants import DynamicBatching, standard_variants
from tritonbatch.server import EmbeddedServer

TYPES = {
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "BOOL": TensorProto.BOOL,
}

Write = Callable[[Path, str, onnx.GraphProto, Sequence[TensorSpec], Sequence[TensorSpec]], None]


def write_model(
    repository: Path,
    name: str,
    graph: onnx.GraphProto,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    max_batch_size: int = 8,
) -> None:
    """Put *graph* into *repository* with the three standard variants."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), version / "model.onnx"
    )
    stem = onnx_config(name, inputs, outputs, max_batch_size=max_batch_size, instances=Instances())
    write_variants(repository / name, standard_variants(stem, max_batch_size // 2, DynamicBatching()))


def _linear(name: str) -> onnx.GraphProto:
    weights = numpy_helper.from_array(np.arange(12, dtype=np.float32).reshape(4, 3), "weights")
    return helper.make_graph(
        [helper.make_node("MatMul", ["x", "weights"], ["y"])],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 3])],
        [weights],
    )


def _echo() -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Identity", [f"in_{name}"], [f"out_{name}"]) for name in TYPES],
        "echo",
        [helper.make_tensor_value_info(f"in_{name}", kind, ["batch", 3]) for name, kind in TYPES.items()],
        [helper.make_tensor_value_info(f"out_{name}", kind, ["batch", 3]) for name, kind in TYPES.items()],
    )


def _gather() -> onnx.GraphProto:
    table = numpy_helper.from_array(np.arange(10, dtype=np.float32), "table")
    return helper.make_graph(
        [helper.make_node("Gather", ["table", "index"], ["value"])],
        "gather",
        [helper.make_tensor_value_info("index", TensorProto.INT64, ["batch", 1])],
        [helper.make_tensor_value_info("value", TensorProto.FLOAT, ["batch", 1])],
        [table],
    )


def _scalar() -> onnx.GraphProto:
    return helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "scalar",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
    )


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four models.

    `linear` (FP32 [4] to [3]), `echo` (every numeric type), `gather` (fails on an index over 9), `scalar` (a tensor
    that has no axis but the batch).
    """
    folder = tmp_path_factory.mktemp("model_repository")
    write_model(
        folder, "linear", _linear("linear"), [TensorSpec("x", "TYPE_FP32", (4,))], [TensorSpec("y", "TYPE_FP32", (3,))]
    )
    np.savez(folder / "linear" / "samples.npz", x=np.random.default_rng(0).random((64, 4), np.float32))
    inputs = [TensorSpec(f"in_{name}", f"TYPE_{name}", (3,)) for name in TYPES]
    outputs = [TensorSpec(f"out_{name}", f"TYPE_{name}", (3,)) for name in TYPES]
    write_model(folder, "echo", _echo(), inputs, outputs)
    write_model(
        folder,
        "gather",
        _gather(),
        [TensorSpec("index", "TYPE_INT64", (1,))],
        [TensorSpec("value", "TYPE_FP32", (1,))],
    )
    write_model(folder, "scalar", _scalar(), [TensorSpec("x", "TYPE_FP32", ())], [TensorSpec("y", "TYPE_FP32", ())])
    np.savez(folder / "scalar" / "samples.npz", x=np.arange(64, dtype=np.float32))
    return folder


@pytest.fixture(scope="session")
def server(repository: Path) -> Iterator[EmbeddedServer]:
    """The embedded Triton with the dynamic variant of every model; shared, so leave it as it was."""
    with EmbeddedServer(repository, config_name="dynamic") as running:
        yield running
