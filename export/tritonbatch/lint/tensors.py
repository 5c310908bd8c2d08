"""Rules about inputs and outputs as the configuration alone declares them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from tritonclient.grpc.model_config_pb2 import BatchInput, DataType, ModelConfig, ModelInput, ModelOutput

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject

Tensor: TypeAlias = "ModelInput | ModelOutput"


def tensors(config: ModelConfig) -> Iterator[tuple[str, Tensor]]:
    """Every input and output with its path in the configuration."""
    for kind, group in (("input", config.input), ("output", config.output)):
        for index, tensor in enumerate(group):
            yield f"{kind}[{index}]", tensor


def shape_text(dims: Sequence[int]) -> str:
    """*dims* as they are written in a config.pbtxt."""
    return f"[{', '.join(map(str, dims))}]"


def _max_batch_negative(subject: Subject) -> Iterator[Problem]:
    size = subject.config.max_batch_size
    if size < 0:
        message = f"max_batch_size is {size}, expected 0 (no batch axis) or more"
        yield Problem("max_batch_size", message, "max_batch_size: 0")


def _no_name(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        if not tensor.name:
            yield Problem(f"{path}.name", "it has no name, expected the model's", 'name: "…"')


def _no_type(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        if not tensor.data_type:
            message = f'"{tensor.name}" has no data_type, expected the model\'s'
            yield Problem(f"{path}.data_type", message, "data_type: TYPE_FP32, or what the model exchanges")


def _type_unknown(subject: Subject) -> Iterator[Problem]:
    known = DataType.values()
    for path, tensor in tensors(subject.config):
        if tensor.data_type not in known:
            message = f'"{tensor.name}" has data_type {tensor.data_type}, expected one of the named types'
            yield Problem(f"{path}.data_type", message, "data_type: TYPE_FP32, or what the model exchanges")


def _no_dims(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        if not tensor.dims:
            fix = "dims: [1] and reshape { shape: [ ] }" if subject.batching else "dims: [1]"
            yield Problem(f"{path}.dims", f'"{tensor.name}" has no dims, expected at least one', fix)


def _dims_invalid(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        for index, dim in enumerate(tensor.dims):
            if dim < 1 and dim != -1:
                message = f'a dimension of "{tensor.name}" is {dim}, expected 1 or more, or -1 for any size'
                yield Problem(f"{path}.dims[{index}]", message, "-1")


def _format_dims(subject: Subject) -> Iterator[Problem]:
    for index, tensor in enumerate(subject.config.input):
        if tensor.format in (ModelInput.FORMAT_NCHW, ModelInput.FORMAT_NHWC) and len(tensor.dims) != 3:
            message = f'"{tensor.name}" has an image format and {len(tensor.dims)} dims, expected 3'
            yield Problem(f"input[{index}].format", message, "remove format, which changes nothing in the tensor")


def _drop_format(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001 - the signature of a repair
    for tensor in config.input:
        if len(tensor.dims) != 3:
            tensor.ClearField("format")


def _shape_tensor(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        for name in ("is_shape_tensor", "is_non_linear_format_io"):
            if getattr(tensor, name) and subject.backend != "tensorrt":
                message = f'"{tensor.name}" sets {name} with backend {subject.backend}, expected only with tensorrt'
                yield Problem(f"{path}.{name}", message, f"remove {name}")


def _drop_shape_tensor(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    for _, tensor in tensors(config):
        tensor.ClearField("is_shape_tensor")
        tensor.ClearField("is_non_linear_format_io")


def _tensor_twice(subject: Subject) -> Iterator[Problem]:
    for kind, group in (("input", subject.config.input), ("output", subject.config.output)):
        names = [tensor.name for tensor in group]
        for index, name in enumerate(names):
            if name and name in names[:index]:
                yield Problem(f"{kind}[{index}].name", f'{kind} "{name}" is listed twice, expected once', "remove one")


def _reshape_invalid(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        for index, dim in enumerate(tensor.reshape.shape):
            if dim < 1 and dim != -1:
                message = f'a reshape dimension of "{tensor.name}" is {dim}, expected 1 or more, or -1'
                yield Problem(f"{path}.reshape.shape[{index}]", message, "-1")


def _reshape_empty(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        if tensor.HasField("reshape") and not tensor.reshape.shape and subject.config.max_batch_size == 0:
            message = f'"{tensor.name}" is reshaped to no dimensions without a batch axis, expected at least one'
            yield Problem(f"{path}.reshape", message, "remove reshape")


def _reshape_count(subject: Subject) -> Iterator[Problem]:
    for path, tensor in tensors(subject.config):
        if not tensor.HasField("reshape") or (not tensor.reshape.shape and not subject.config.max_batch_size):
            continue
        if _chunks(tensor.dims) != _chunks(tensor.reshape.shape):
            dims, shape = shape_text(tensor.dims), shape_text(tensor.reshape.shape)
            message = f'"{tensor.name}" has dims {dims} and reshape {shape}, expected as many elements between the -1'
            yield Problem(
                f"{path}.reshape.shape", message, "write a shape with the elements of dims, or remove reshape"
            )


def _chunks(dims: Sequence[int]) -> list[int]:
    """The number of elements before, between and after the free dimensions: what a reshape must keep."""
    cuts = [-1, *(index for index, dim in enumerate(dims) if dim == -1), len(dims)]
    return [math.prod(dims[start + 1 : end]) for start, end in itertools.pairwise(cuts)]


def _batch_io(subject: Subject) -> Iterator[Problem]:
    inputs = {tensor.name for tensor in subject.config.input}
    for kind in ("batch_input", "batch_output"):
        for index, entry in enumerate(getattr(subject.config, kind)):
            path = f"{kind}[{index}].source_input"
            if len(entry.source_input) != 1:
                yield Problem(
                    path, f"it has {len(entry.source_input)} source inputs, expected one", 'source_input: "…"'
                )
            for name in set(entry.source_input) - inputs:
                yield Problem(path, f'"{name}" is no input, expected one of {", ".join(sorted(inputs))}', "correct it")


def _batch_input_type(subject: Subject) -> Iterator[Problem]:
    for index, entry in enumerate(subject.config.batch_input):
        if entry.data_type not in (DataType.TYPE_INT32, DataType.TYPE_FP32):
            name = DataType.Name(entry.data_type)
            message = f"{BatchInput.Kind.Name(entry.kind)} is {name}, expected TYPE_INT32 or TYPE_FP32"
            yield Problem(f"batch_input[{index}].data_type", message, "data_type: TYPE_INT32")


def _batch_output_target(subject: Subject) -> Iterator[Problem]:
    outputs = {tensor.name for tensor in subject.config.output}
    for index, entry in enumerate(subject.config.batch_output):
        names = list(entry.target_name)
        for place, name in enumerate(names):
            if name not in outputs or name in names[:place]:
                message = (
                    f'target "{name}" is no output or listed twice, expected each of {", ".join(sorted(outputs))} once'
                )
                yield Problem(f"batch_output[{index}].target_name[{place}]", message, "name an output, once")


def _batch_output_empty(subject: Subject) -> Iterator[Problem]:
    for index, entry in enumerate(subject.config.batch_output):
        if not entry.target_name:
            message = "it has no target, on which the server ends by a signal, expected an output"
            yield Problem(f"batch_output[{index}].target_name", message, 'target_name: "…"')


RULES = (
    error("max-batch-negative", "max_batch_size is below 0.", _max_batch_negative),
    error("tensor-without-name", "An input or output has no name.", _no_name),
    error("tensor-without-type", "An input or output has no data_type.", _no_type),
    error("tensor-type-unknown", "A data_type is a number that stands for no type.", _type_unknown),
    error("tensor-without-dims", "An input or output has no dims.", _no_dims),
    error("dims-invalid", "A dimension is neither at least 1 nor -1.", _dims_invalid),
    error("format-dims", "FORMAT_NCHW or FORMAT_NHWC without exactly 3 dims.", _format_dims, _drop_format),
    error("shape-tensor", "A shape tensor or non-linear format outside TensorRT.", _shape_tensor, _drop_shape_tensor),
    error("reshape-invalid", "A reshape dimension is neither at least 1 nor -1.", _reshape_invalid),
    error("reshape-empty", "An empty reshape without a batch axis.", _reshape_empty),
    error("reshape-count", "dims and reshape hold different numbers of elements.", _reshape_count),
    error("batch-io-source", "A batch input or output has not exactly one existing source input.", _batch_io),
    error("batch-input-type", "A batch input is neither TYPE_INT32 nor TYPE_FP32.", _batch_input_type),
    error("batch-output-target", "A batch output's target is no output, or listed twice.", _batch_output_target),
    error("batch-output-without-target", "A batch output has no target; Triton 2.51 crashes.", _batch_output_empty),
    warning("tensor-twice", "An input or output is listed twice; Triton loads it, requests then fail.", _tensor_twice),
)
