"""Whatever would compute something else under a batching server is rejected before it is put in place."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tritonbatch.errors import ExportRejected, InvalidInput, NotSupported
from tritonbatch.export.build import build_from_file, build_version
from tritonbatch.export.difference import compare
from tritonbatch.export.verify import verify
from tritonbatch.models.model import Model, TensorSpec


class SizeAsNumber(torch.nn.Module):
    """Turns the batch size into a number, which the exporter then keeps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To [batch, 4]."""
        return x.reshape(int(x.shape[0]) * 4).reshape(-1, 4) * float(x.shape[0])


class ValueDecides(torch.nn.Module):
    """Branches on the values of its input."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To [batch, 4]."""
        return x if x.sum() > 0 else -x


class AcrossRows(torch.nn.Module):
    """Sums up the rows before each row."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To [batch, 4]."""
        return x.cumsum(0)


class Transposed(torch.nn.Module):
    """Returns the batch on axis 1."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """To [4, batch]."""
        return x.T


BATCH_NORM = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
DROPOUT = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (SizeAsNumber(), r"'x' \[2, 4\] has axis 0 fixed at 2, expected a symbolic batch axis"),
        (ValueDecides(), "cannot export model 'tiny'.*at 'return x if x.sum"),
        (AcrossRows(), "output 'y' depends on the other rows of its batch of 8"),
        (torch.nn.Softmax(dim=0), "output 'y' depends on the other rows of its batch of 8"),
        (BATCH_NORM.train(), "training mode.*call .eval"),
        (DROPOUT.train(), "output 'y' differs from torch.*training mode"),
        (Transposed(), "output 'y'.*batch on axis 1"),
        (torch.nn.Linear(4, 3), r"output 'y' of the exported graph is TYPE_FP32 \[3\], expected TYPE_FP32 \[4\]"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, torch.nn.Module) else "",
)
def test_a_module_that_does_not_batch_is_rejected(
    make_model: Callable[..., Model], tmp_path: Path, module: torch.nn.Module, words: str
) -> None:
    """The message names the tensor and the fault, and nothing is left in the repository."""
    with pytest.raises(ExportRejected, match=words):
        build_version(make_model(module), tmp_path / "tiny", max_batch_size=16)
    assert not (tmp_path / "tiny").exists()


def test_a_rejection_prints_nothing(
    make_model: Callable[..., Model], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The exporter's dump of what it traced stays off the terminal."""
    with pytest.raises(ExportRejected):
        build_version(make_model(ValueDecides()), tmp_path / "tiny", max_batch_size=4)
    assert capfd.readouterr() == ("", "")


def test_a_declared_type_that_the_graph_lacks_is_rejected(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """An output of another type than declared is named with both types."""
    model = make_model(torch.nn.Identity(), TensorSpec("y", "TYPE_INT64", (4,)))
    with pytest.raises(ExportRejected, match=r"output 'y'.*TYPE_FP32.*expected TYPE_INT64"):
        build_version(model, tmp_path / "tiny", max_batch_size=4)


def test_dims_that_repeat_the_batch_axis_are_rejected(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """An output declared as [-1, 4] for a graph of [batch, 4] is named with both shapes."""
    model = make_model(torch.nn.Identity(), TensorSpec("y", "TYPE_FP32", (-1, 4)))
    with pytest.raises(ExportRejected, match=r"output 'y'.*TYPE_FP32 \[4\], expected TYPE_FP32 \[-1, 4\]"):
        build_version(model, tmp_path / "tiny", max_batch_size=4)


def test_a_type_that_cannot_be_verified_is_not_supported(make_model: Callable[..., Model], tmp_path: Path) -> None:
    """BF16 outputs are refused with what to do instead."""
    model = make_model(torch.nn.Identity(), TensorSpec("y", "TYPE_BF16", (4,)))
    with pytest.raises(NotSupported, match=r"'y'.*TYPE_BF16.*TYPE_FP32"):
        build_version(model, tmp_path / "tiny", max_batch_size=4)


def test_a_file_that_differs_from_the_module_is_rejected(
    make_model: Callable[..., Model], write_graph: Callable[..., Path]
) -> None:
    """Parity names the output, the batch size and both values."""
    path = write_graph([helper.make_node("Neg", ["x"], ["y"])], ["batch", 4], ["batch", 4])
    model = make_model(torch.nn.Identity())
    with pytest.raises(ExportRejected, match=r"output 'y' differs from torch at batch 1: got .* expected .* within"):
        verify(path, model.sample, 8, model)


IDENTITY = [helper.make_node("Identity", ["x"], ["y"])]
RESHAPE = [helper.make_node("Reshape", ["x", "constant"], ["y"])]
TWICE = [helper.make_node("Concat", ["x", "x"], ["y"], axis=0)]


@pytest.mark.parametrize(
    ("nodes", "x", "y", "constant", "words"),
    [
        (IDENTITY, [1, 3, 8, 8], [1, 3, 8, 8], (), r"input 'x' \[1, 3, 8, 8\] has axis 0 fixed at 1.*max_batch_size 0"),
        (RESHAPE, ["batch", 4, 4, 4], [1, 4, 4, "n"], (1, 4, 4, -1), r"output 'y' \[1, 4, 4, n\]"),
        (IDENTITY, ["seq", "N", 4], ["seq", "N", 4], (), "input 'x'.*batch on axis 1.*transpose"),
        (IDENTITY, [16, "batch", 4], [16, "batch", 4], (), "input 'x'.*batch on axis 1"),
        (
            [helper.make_node("Transpose", ["x"], ["y"], perm=[1, 0])],
            ["rows", "columns"],
            ["columns", "rows"],
            (),
            r"output 'y' \[columns, rows\] has axis 1 of input 'x'",
        ),
        ([helper.make_node("ReduceSum", ["x"], ["y"], keepdims=0)], ["batch", 4], [], (), "output 'y'.*has no axes"),
        (IDENTITY, ["batch", 4], None, (), "not a valid ONNX model: .*shape.* is required"),
        (IDENTITY, ["batch", 0], ["batch", 0], (), r"input 'x' \[batch, 0\] has a size of 0, expected at least 1"),
        (TWICE, ["batch", 4], ["batch", 4], (), r"output 'y' has shape \[2, 4\] at batch 1"),
        (RESHAPE, ["batch", 4], [None, 4], (1, 4), "fails at batch 2"),
        (
            [helper.make_node("Softmax", ["x"], ["y"], axis=0)],
            ["batch", 4],
            ["batch", 4],
            (),
            "output 'y' depends on the other rows",
        ),
        ([helper.make_node("NoSuchOperator", ["x"], ["y"])], ["batch", 4], ["batch", 4], (), "NoSuchOperator"),
        ([helper.make_node("SequenceConstruct", ["x"], ["s"])], ["batch", 4], ["batch", 4], (), "not a valid ONNX"),
    ],
)
def test_a_graph_that_does_not_batch_is_rejected(  # noqa: PLR0913, PLR0917 - a table row each
    write_graph: Callable[..., Path],
    tmp_path: Path,
    nodes: list[onnx.NodeProto],
    x: list[int | str | None],
    y: list[int | str | None] | None,
    constant: tuple[int, ...],
    words: str,
) -> None:
    """A file that comes without a module gets the same checks of its batch axis and its rows."""
    path = write_graph(nodes, x, y, constant)
    with pytest.raises(ExportRejected, match=words):
        build_from_file(path, tmp_path / "repository" / "given", max_batch_size=8)
    assert not (tmp_path / "repository" / "given").exists()


def test_an_output_that_is_no_tensor_is_rejected(tmp_path: Path) -> None:
    """A sequence output is named as such."""
    y = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])
    graph = helper.make_graph([helper.make_node("SequenceConstruct", ["x"], ["y"])], "graph", [x], [y])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), tmp_path / "sequence.onnx")
    with pytest.raises(ExportRejected, match="output 'y' is a sequence, expected a tensor"):
        build_from_file(tmp_path / "sequence.onnx", tmp_path / "given", max_batch_size=8)


@pytest.mark.parametrize(("content", "words"), [(None, "there is no file"), (b"", "not an ONNX"), (b"hello", "not an")])
def test_a_file_that_is_no_onnx_is_invalid_input(tmp_path: Path, content: bytes | None, words: str) -> None:
    """A missing, empty or foreign file is the caller's mistake."""
    path = tmp_path / "given.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=words):
        build_from_file(path, tmp_path / "given", max_batch_size=8)


@pytest.mark.parametrize(
    ("got", "expected", "passes"),
    [
        ([1.0], [1.0005], True),
        ([1.0], [1.01], False),
        ([0.0], [5e-5], True),
        ([np.nan], [np.nan], True),
        ([np.nan], [1.0], False),
        ([1.0], [np.nan], False),
        ([np.inf], [np.inf], True),
        ([np.inf], [1.0], False),
        ([1.0], [np.inf], False),
    ],
)
def test_values_pass_within_the_tolerance(got: list[float], expected: list[float], passes: bool) -> None:  # noqa: FBT001
    """FP32 values pass within 1e-4 + 0.1%; NaN and infinity only when both sides have them."""
    arrays = ({"y": np.array(got, np.float32)}, {"y": np.array(expected, np.float32)})
    if passes:
        assert np.isfinite(compare(*arrays, "differs", "stop").absolute)
    else:
        with pytest.raises(ExportRejected, match="output 'y' differs: got"):
            compare(*arrays, "differs", "stop")


@pytest.mark.parametrize(("kind", "other"), [(np.int64, 2), (np.bool_, 0), (object, "b")])
def test_other_types_have_to_be_equal(kind: type, other: object) -> None:
    """Integers, booleans and text have no tolerance."""
    one = {"y": np.array(["a"] if kind is object else [1], dtype=kind)}
    assert compare(one, one, "differs", "stop").absolute == 0
    with pytest.raises(ExportRejected, match="exactly"):
        compare({"y": np.array([other], dtype=kind)}, one, "differs", "stop")
