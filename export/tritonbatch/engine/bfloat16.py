"""A graph of FP16 to one of BF16: the same casts at the same places, the weights rounded anew from FP32."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from tritonbatch.export.onnx_file import graphs_within

if TYPE_CHECKING:
    import onnx


def to_bfloat16(halved: onnx.ModelProto, original: onnx.ModelProto) -> None:
    """Turn every FP16 in *halved* into BF16, in place; weights come from *original*, which has their full range."""
    from onnx import TensorProto  # noqa: PLC0415

    weights = {tensor.name: tensor for tensor in original.graph.initializer}
    for tensor in _tensors(halved.graph):
        if tensor.data_type == TensorProto.FLOAT16:
            _round(tensor, weights.get(tensor.name, tensor))
    for graph in graphs_within(halved.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type == TensorProto.FLOAT16:
                value.type.tensor_type.elem_type = TensorProto.BFLOAT16
        for node in graph.node:
            for attribute in node.attribute:
                if node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT16:
                    attribute.i = TensorProto.BFLOAT16


def _round(tensor: onnx.TensorProto, source: onnx.TensorProto) -> None:
    import ml_dtypes  # noqa: PLC0415 - comes with onnx
    import numpy as np  # noqa: PLC0415
    from onnx import numpy_helper  # noqa: PLC0415

    values = np.asarray(numpy_helper.to_array(source)).astype(np.float32).astype(ml_dtypes.bfloat16)
    name = tensor.name
    tensor.CopyFrom(numpy_helper.from_array(values, name))


def _tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    for each in graphs_within(graph):
        yield from each.initializer
        for node in each.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
