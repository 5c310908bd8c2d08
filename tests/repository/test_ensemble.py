"""Ensembles: two configurations and a mapping of tensors become a third, or a sentence about what does not fit."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.ensemble import ensemble

IDS = TensorSpec("ids", "TYPE_INT64", (-1,))
MASK = TensorSpec("mask", "TYPE_INT64", (-1,))


def step(name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], max_batch_size: int) -> ModelConfig:
    """One step."""
    return onnx_config(name, inputs, outputs, max_batch_size=max_batch_size, instances=Instances())


TOKENS = step("tokens", [TensorSpec("text", "TYPE_UINT8", (64,)), MASK], [IDS], 64)
ENCODER = step("encoder", [IDS, MASK, TensorSpec("scale", "TYPE_FP32", (1,))], [TensorSpec("y", "TYPE_FP32", (8,))], 16)


def test_an_ensemble_takes_what_is_not_fed_and_gives_what_the_model_gives() -> None:
    """Inputs of both steps that nobody feeds, once each; the model's outputs; the smaller batch; no scheduler else."""
    config = ensemble("pipeline", TOKENS, ENCODER, {"ids": "ids"})
    assert (config.platform, config.max_batch_size) == ("ensemble", 16)
    assert [tensor.name for tensor in config.input] == ["text", "mask", "scale"]
    assert [(tensor.name, list(tensor.dims)) for tensor in config.output] == [("y", [8])]
    first, second = config.ensemble_scheduling.step
    assert (first.model_name, dict(first.input_map)) == ("tokens", {"text": "text", "mask": "mask"})
    assert dict(first.output_map) == {"ids": "tokens/ids"}
    assert dict(second.input_map) == {"ids": "tokens/ids", "mask": "mask", "scale": "scale"}
    assert dict(second.output_map) == {"y": "y"}
    assert not config.instance_group
    assert (first.model_version, second.model_version) == (-1, -1)


def changed(config: ModelConfig, **fields: int | str) -> ModelConfig:
    """A copy of *config* with *fields* set."""
    copy = ModelConfig()
    copy.CopyFrom(config)
    for name, value in fields.items():
        setattr(copy, name, value)
    return copy


FLOAT_MASK = step("encoder", [IDS, TensorSpec("mask", "TYPE_FP32", (-1,))], [IDS], 16)
FLOAT_IDS = step("encoder", [TensorSpec("ids", "TYPE_FP32", (-1,))], [IDS], 16)
SQUARE_IDS = step("encoder", [TensorSpec("ids", "TYPE_INT64", (-1, -1))], [IDS], 16)


@pytest.mark.parametrize(
    ("name", "first", "second", "tensors", "says"),
    [
        ("a/b", TOKENS, ENCODER, {"ids": "ids"}, "Model name 'a/b'"),
        ("tokens", TOKENS, ENCODER, {"ids": "ids"}, "expected three different names"),
        ("p", TOKENS, TOKENS, {"mask": "ids"}, "expected three different names"),
        ("p", TOKENS, ENCODER, {}, r"Nothing of tokens is fed to encoder: expected at least one of \['ids'\]"),
        ("p", TOKENS, ENCODER, {"id": "ids"}, r"encoder has no input 'id' .* \['ids', 'mask', 'scale'\]"),
        ("p", TOKENS, ENCODER, {"ids": "id"}, r"tokens has no output 'id' to feed: expected one of \['ids'\]"),
        ("p", TOKENS, FLOAT_IDS, {"ids": "ids"}, r"TYPE_INT64 \[-1\], expected TYPE_FP32 \[-1\]"),
        ("p", TOKENS, SQUARE_IDS, {"ids": "ids"}, r"TYPE_INT64 \[-1\], expected TYPE_INT64 \[-1, -1\]"),
        ("p", TOKENS, FLOAT_MASK, {"ids": "ids"}, "'mask' is TYPE_INT64 .* in one step and TYPE_FP32"),
        ("p", changed(TOKENS, max_batch_size=0), ENCODER, {"ids": "ids"}, "expected both to batch, or neither"),
    ],
)
def test_what_does_not_fit_together_is_said(
    name: str, first: ModelConfig, second: ModelConfig, tensors: dict[str, str], says: str
) -> None:
    """Names, tensors, types, shapes and batching that do not join name the tensor and both sides."""
    with pytest.raises(InvalidInput, match=says):
        ensemble(name, first, second, tensors)
