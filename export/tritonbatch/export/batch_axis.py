"""Whether a graph leaves the batch free, on axis 0 of every input and output. Reads declarations, runs nothing."""

from __future__ import annotations

import re

from tritonbatch.errors import ExportRejected
from tritonbatch.export.onnx_file import Axis, GraphTensor
from tritonbatch.models.model import TensorSpec

# The symbols that people and exporters give a batch: batch, batch_size, N, B, bs.
_BATCH_SYMBOL = re.compile(r"batch|^(n|b|bs)$", re.IGNORECASE)


def check_batch_axis(tensors: tuple[GraphTensor, ...]) -> None:
    """Check that axis 0 of each of *tensors* is free and means the batch.

    Raises:
        ExportRejected: Names the first tensor whose batch axis is fixed, missing or elsewhere.
    """
    for tensor in tensors:
        _check_own_axes(tensor)
    inputs = [tensor for tensor in tensors if tensor.kind == "input"]
    for tensor in tensors:
        if tensor.kind == "output":
            _check_same_batch(tensor, inputs)


def _check_own_axes(tensor: GraphTensor) -> None:
    if not tensor.axes:
        raise ExportRejected(
            f"{tensor} has no axes, expected the batch on axis 0; return one value per row of the batch"
        )
    if 0 in tensor.axes:
        raise ExportRejected(
            f"{tensor} has a size of 0, expected at least 1 or a free size; export it again with an example that has "
            "values on that axis"
        )
    first = tensor.axes[0]
    moved_to = next((axis for axis, size in enumerate(tensor.axes) if _is_batch(size)), 0)
    if moved_to and not _is_batch(first):
        raise ExportRejected(
            f"{tensor} has its batch on axis {moved_to}, expected it on axis 0; "
            "wrap the model in a transpose on the way in and out, and export it again"
        )
    if isinstance(first, int):
        raise ExportRejected(
            f"{tensor} has axis 0 fixed at {first}, expected a symbolic batch axis; export it again with a dynamic "
            "batch axis on every input and nothing in the model that turns the batch size into a number, or serve it "
            "without batching (max_batch_size 0 and the full dims)"
        )


def _check_same_batch(output: GraphTensor, inputs: list[GraphTensor]) -> None:
    symbol = output.axes[0]
    if symbol is None or any(tensor.axes[0] == symbol for tensor in inputs):
        return
    for tensor in inputs:
        if symbol in tensor.axes[1:]:
            raise ExportRejected(
                f"{output} has axis {tensor.axes.index(symbol)} of {tensor} on axis 0, expected the batch, axis 0 of "
                "the input; wrap the model in a transpose so that the batch is axis 0 of both, and export it again"
            )


def _is_batch(symbol: Axis) -> bool:
    return isinstance(symbol, str) and _BATCH_SYMBOL.search(symbol) is not None


def specs_of(tensors: tuple[GraphTensor, ...], kind: str) -> tuple[TensorSpec, ...]:
    """The ``input`` or ``output`` tensors without their batch axis, free sizes as -1."""
    return tuple(
        TensorSpec(tensor.name, tensor.data_type, tuple(a if isinstance(a, int) else -1 for a in tensor.axes[1:]))
        for tensor in tensors
        if tensor.kind == kind
    )


def check_declared(tensors: tuple[GraphTensor, ...], kind: str, declared: tuple[TensorSpec, ...]) -> None:
    """Check that the graph has exactly the *declared* tensors of *kind*, as the model promised.

    Raises:
        ExportRejected: Names the first that is missing, unexpected, or of another type or size.
    """
    found = specs_of(tensors, kind)
    found_names, names = [spec.name for spec in found], [spec.name for spec in declared]
    if found_names != names:
        raise ExportRejected(
            f"the exported graph has the {kind}s {found_names}, expected {names} as the model declares; "
            "correct the TensorSpecs, or rename a tensor whose name is taken inside the graph"
        )
    for got, spec in zip(found, declared, strict=True):
        sizes_agree = len(got.dims) == len(spec.dims) and all(
            g in (-1, s) for g, s in zip(got.dims, spec.dims, strict=True)
        )
        if got.data_type != spec.data_type or not sizes_agree:
            raise ExportRejected(
                f"{kind} {got.name!r} of the exported graph is {got.data_type} {list(got.dims)}, expected "
                f"{spec.data_type} {list(spec.dims)} as the model declares; correct the TensorSpec or the module"
            )
