"""A lowered graph has the same inputs and outputs, and what it lost is measured."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto

from tritonbatch.engine.calibration import cache_file
from tritonbatch.engine.lower_precision import lower_precision, read_samples
from tritonbatch.errors import InvalidInput
from tritonbatch.export.onnx_file import graph_tensors


@pytest.fixture
def version(exported_repository: Path) -> Path:
    """The version folder of the exported model."""
    return exported_repository / "layers" / "1"


@pytest.mark.parametrize(("precision", "largest"), [("fp16", 1e-3), ("int8", 0.05)])
def test_a_lowered_graph_stays_close(precision: str, largest: float, version: Path) -> None:
    """FP16 is within a thousandth and INT8 within a twentieth of the FP32 result, and neither is exact."""
    lowered = lower_precision(version, precision)
    assert lowered.path == version / f"model.{precision}.onnx"
    assert lowered.deviation is not None
    assert 0 < lowered.deviation < largest


@pytest.mark.parametrize("precision", ["fp16", "bf16", "int8"])
def test_inputs_and_outputs_stay_as_they_are(precision: str, version: Path) -> None:
    """Clients see FP32 and a free batch, whatever is inside; the file passes the checker."""
    proto = onnx.load(lower_precision(version, precision).path)
    onnx.checker.check_model(proto)
    assert graph_tensors(proto.graph) == graph_tensors(onnx.load(version / "model.onnx").graph)


def test_bf16_has_no_fp16_left(version: Path) -> None:
    """Weights, casts and values in between are BF16, and its loss is not known on a CPU."""
    lowered = lower_precision(version, "bf16")
    proto = onnx.load(lowered.path)
    assert lowered.deviation is None
    assert {tensor.data_type for tensor in proto.graph.initializer} == {TensorProto.BFLOAT16}
    casts = [a.i for node in proto.graph.node if node.op_type == "Cast" for a in node.attribute]
    assert set(casts) == {TensorProto.BFLOAT16, TensorProto.FLOAT}


def test_fp32_is_the_file_itself(version: Path) -> None:
    """Nothing is written for FP32."""
    before = sorted(version.iterdir())
    assert lower_precision(version, "fp32").path == version / "model.onnx"
    assert sorted(version.iterdir()) == before


def test_the_calibration_is_kept(version: Path) -> None:
    """A second run with the same model and rows reads the ranges of the first, and other rows get their own."""
    rows = read_samples(version.parent / "samples.npz")
    first = lower_precision(version, "int8").path.read_bytes()
    cache = cache_file(version / "model.onnx", rows)
    written = cache.stat().st_mtime_ns
    assert lower_precision(version, "int8").path.read_bytes() == first
    assert cache.stat().st_mtime_ns == written
    assert cache_file(version / "model.onnx", {"x": rows["x"] + 1}) != cache


def test_quantize_nodes_stand_only_before_large_operators(version: Path) -> None:
    """Inputs and weights of the two products are quantized; their outputs are not."""
    graph = onnx.load(lower_precision(version, "int8").path).graph
    products = [node for node in graph.node if node.op_type == "MatMul"]
    dequantized = {name for node in graph.node if node.op_type == "DequantizeLinear" for name in node.output}
    assert all(set(node.input) <= dequantized for node in products)
    assert products[-1].output[0] == "y"


def test_lowering_prints_nothing(version: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The calibrator's remarks stay off the terminal."""
    lower_precision(version, "int8")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("missing", "words"), [("samples.npz", "samples.npz"), ("1/model.onnx", "model.onnx")])
def test_what_is_missing_is_named(missing: str, words: str, version: Path) -> None:
    """Without the model or its sample rows there is nothing to lower or to calibrate with."""
    (version.parent / missing).unlink()
    with pytest.raises(InvalidInput, match=words):
        lower_precision(version, "int8")


def test_an_unknown_precision_is_refused(version: Path) -> None:
    """The four precisions are named."""
    with pytest.raises(InvalidInput, match="fp32, fp16, bf16, int8"):
        lower_precision(version, "fp8")
