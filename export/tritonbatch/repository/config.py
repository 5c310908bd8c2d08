"""config.pbtxt is the protobuf ``inference.ModelConfig``: made, read and written here, never formatted by hand.

Everything that Triton would otherwise decide by itself is always written, because what it decides differs by backend
and version: ``max_batch_size`` (checked before auto-completion), every input and output (with both present the ONNX
Runtime backend skips auto-completion, so it adds no scheduler of its own), the instance count (ONNX Runtime on a CPU
defaults to two) and ``intra_op_thread_count`` (its default is every core, for every instance).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup

from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec

MODEL_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Instances:
    """How many instances run a model, on what *kind* of device, each with how many threads within an operator."""

    count: int = 1
    kind: str = "KIND_CPU"
    intra_op_threads: int = 1


def onnx_config(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    max_batch_size: int,
    instances: Instances,
) -> ModelConfig:
    """The complete configuration of an ONNX model without a scheduler: the stem that variants grow from.

    Raises:
        InvalidInput: the name cannot be a directory, or a number is out of range.
    """
    config = ModelConfig(name=name, backend="onnxruntime", max_batch_size=max_batch_size)
    _complete(config, inputs, outputs, instances)
    config.parameters["intra_op_thread_count"].string_value = str(instances.intra_op_threads)
    return config


def tensorrt_config(
    name: str,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    *,
    max_batch_size: int,
    instances: Instances,
) -> ModelConfig:
    """The complete configuration of a TensorRT engine (``model.plan``) without a scheduler, for a GPU.

    The TensorRT backend adds ``dynamic_batching`` by itself to any configuration without a scheduler, so serial and
    static need a server with ``--disable-auto-complete-config``.

    Raises:
        InvalidInput: the name cannot be a directory, or a number is out of range.
    """
    config = ModelConfig(name=name, platform="tensorrt_plan", backend="tensorrt", max_batch_size=max_batch_size)
    _complete(config, inputs, outputs, replace(instances, kind="KIND_GPU"))
    return config


def _complete(
    config: ModelConfig, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], instances: Instances
) -> None:
    _check(config.name, config.max_batch_size, instances)
    for tensors, specs in ((config.input, inputs), (config.output, outputs)):
        for spec in specs:
            tensor = tensors.add(name=spec.name, data_type=DataType.Value(spec.data_type), dims=spec.dims or (1,))
            if not spec.dims:
                # A tensor of shape [batch]: dims may not be empty, so callers see [batch, 1] and the model [batch].
                tensor.reshape.SetInParent()
    config.instance_group.add(count=instances.count, kind=ModelInstanceGroup.Kind.Value(instances.kind))


def copied(config: ModelConfig) -> ModelConfig:
    """A copy of *config* to change, so that no variant alters the one that it grew from."""
    changed = ModelConfig()
    changed.CopyFrom(config)
    return changed


def _check(name: str, max_batch_size: int, instances: Instances) -> None:
    if not MODEL_NAME.fullmatch(name):
        raise InvalidInput(f"Model name {name!r} cannot be used: expected letters, digits, '_', '-' and '.' only.")
    if max_batch_size < 2:
        raise InvalidInput(f"max_batch_size is {max_batch_size}: expected at least 2, or there is nothing to batch.")
    for what, number in (("instance count", instances.count), ("thread count", instances.intra_op_threads)):
        if number < 1:
            raise InvalidInput(f"The {what} is {number}: expected at least 1.")


def config_text(config: ModelConfig, comment: str = "") -> str:
    """*config* as a text protobuf, below *comment*, one ``#`` line for each of its lines."""
    header = "".join(f"# {line}\n" for line in comment.splitlines())
    return f"{header}{text_format.MessageToString(config).rstrip()}\n"


def read_config(path: Path) -> ModelConfig:
    """Parse a config.pbtxt.

    Raises:
        InvalidInput: it cannot be read, or is not a text protobuf of ModelConfig; names file, line and column.
    """
    try:
        return text_format.Parse(path.read_text(encoding="utf-8"), ModelConfig())
    except OSError as error:
        raise InvalidInput(f"Cannot read {path}: {error.strerror}; expected a config.pbtxt.") from error
    except (text_format.ParseError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} is not a valid config.pbtxt: {error}.") from error


def scheduler_of(config: ModelConfig) -> str:
    """The scheduler that *config* asks for: ``default``, ``dynamic``, ``sequence`` or ``ensemble``."""
    kind = config.WhichOneof("scheduling_choice")
    return str(kind).partition("_")[0] if kind else "default"
