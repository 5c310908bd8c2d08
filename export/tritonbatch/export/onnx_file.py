"""Read, check and write an ONNX file, and what its graph says about inputs and outputs. Runs nothing."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tritonbatch.errors import ExportRejected, InvalidInput

if TYPE_CHECKING:
    import onnx

# Protobuf ends at 2 GiB; the graph around the weights needs a little of it.
INLINE_LIMIT_BYTES = 1_900_000_000
MODEL_FILE = "model.onnx"
WEIGHTS_PATTERN = "weights-*.bin"

_TRITON_TYPES = {
    "BOOL": "TYPE_BOOL",
    "UINT8": "TYPE_UINT8",
    "UINT16": "TYPE_UINT16",
    "UINT32": "TYPE_UINT32",
    "UINT64": "TYPE_UINT64",
    "INT8": "TYPE_INT8",
    "INT16": "TYPE_INT16",
    "INT32": "TYPE_INT32",
    "INT64": "TYPE_INT64",
    "FLOAT16": "TYPE_FP16",
    "BFLOAT16": "TYPE_BF16",
    "FLOAT": "TYPE_FP32",
    "DOUBLE": "TYPE_FP64",
    "STRING": "TYPE_STRING",
}

Axis = int | str | None
"""A fixed size, the symbol of a free one, or None for a free one without a symbol."""


@dataclass(frozen=True, slots=True)
class GraphTensor:
    """An input or output as the graph declares it; *axes* includes the batch axis."""

    kind: str
    name: str
    data_type: str
    axes: tuple[Axis, ...]

    def __str__(self) -> str:
        axes = ", ".join("?" if axis is None else str(axis) for axis in self.axes)
        return f"{self.kind} {self.name!r} [{axes}]"


def read_onnx(path: Path) -> onnx.ModelProto:
    """Parse and check the file, with the weights that lie beside it.

    Raises:
        InvalidInput: There is no such file, or it is not ONNX.
        ExportRejected: The graph is not valid, or weights that it refers to are missing.
    """
    import onnx  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    if not path.is_file():
        raise InvalidInput(f"there is no file {str(path)!r}, expected an .onnx file; correct the path")
    try:
        onnx.checker.check_model(str(path))
        return onnx.load(path)
    except (onnx.checker.ValidationError, FileNotFoundError) as error:
        if not _is_onnx(path):
            raise InvalidInput(_not_onnx(path)) from error
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise ExportRejected(
            f"{path.name} is not a valid ONNX model: {reason}; export it again, and keep its weight files beside it"
        ) from error
    except DecodeError as error:
        raise InvalidInput(_not_onnx(path)) from error


def write_onnx(proto: onnx.ModelProto, folder: Path) -> None:
    """Write *proto* as model.onnx into *folder*, its weights into a file beside it if one file cannot hold both."""
    import onnx  # noqa: PLC0415

    large = sum(len(tensor.raw_data) for tensor in proto.graph.initializer) > INLINE_LIMIT_BYTES
    # A new name each time, so that replacing model.onnx also switches from the old weights to the new ones.
    weights = WEIGHTS_PATTERN.replace("*", secrets.token_hex(4))
    onnx.save(proto, folder / MODEL_FILE, save_as_external_data=large, location=weights)


def forget_sources(proto: onnx.ModelProto) -> None:
    """Remove the exporter's notes in place: they quote source paths of this machine, so they belong in no artefact."""
    for node in (*proto.graph.node, *(node for function in proto.functions for node in function.node)):
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in proto.graph.value_info:
        value.ClearField("metadata_props")


def graph_tensors(graph: onnx.GraphProto) -> tuple[GraphTensor, ...]:
    """Inputs, then outputs, in the order of the graph; weights that old files list as inputs are left out.

    Raises:
        ExportRejected: One is not a tensor of a type that Triton serves.
    """
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [_graph_tensor("input", value) for value in graph.input if value.name not in weights]
    return (*inputs, *(_graph_tensor("output", value) for value in graph.output))


def graphs_within(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """*graph* itself, and those inside its nodes (the branches of an If, the body of a Loop), at any depth."""
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            for inner in (*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])):
                yield from graphs_within(inner)


def opset(proto: onnx.ModelProto) -> int:
    """The version of the standard operator set that the graph uses."""
    return max((entry.version for entry in proto.opset_import if entry.domain in ("", "ai.onnx")), default=0)


def external_files(path: Path) -> tuple[Path, ...]:
    """The weight files that the ONNX file at *path* refers to."""
    import onnx  # noqa: PLC0415

    proto = onnx.load(path, load_external_data=False)
    entries = (entry for tensor in proto.graph.initializer for entry in tensor.external_data)
    return tuple(sorted({path.parent / entry.value for entry in entries if entry.key == "location"}))


def _graph_tensor(kind: str, value: onnx.ValueInfoProto) -> GraphTensor:
    import onnx  # noqa: PLC0415

    held = value.type.WhichOneof("value")
    if held != "tensor_type":
        raise ExportRejected(
            f"{kind} {value.name!r} is a {(held or 'value without a type').removesuffix('_type')}, expected a tensor; "
            "export the model so that it exchanges tensors only"
        )
    tensor = value.type.tensor_type
    onnx_type = onnx.TensorProto.DataType.Name(tensor.elem_type)
    if onnx_type not in _TRITON_TYPES:
        raise ExportRejected(
            f"{kind} {value.name!r} is of ONNX type {onnx_type}, expected one of {', '.join(_TRITON_TYPES)}; "
            "cast it inside the model"
        )
    return GraphTensor(kind, value.name, _TRITON_TYPES[onnx_type], tuple(_axis(dim) for dim in tensor.shape.dim))


def _axis(dim: onnx.TensorShapeProto.Dimension) -> Axis:
    if dim.HasField("dim_value"):
        return dim.dim_value
    return dim.dim_param or None


def _is_onnx(path: Path) -> bool:
    import onnx  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        proto = onnx.load(path, load_external_data=False)
    except DecodeError:
        return False
    return bool(proto.graph.node or proto.graph.output)


def _not_onnx(path: Path) -> str:
    return f"{str(path)!r} is not an ONNX file ({path.stat().st_size} bytes); give the file that the exporter wrote"
