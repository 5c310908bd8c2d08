"""Profiles follow from the batching settings, and what cannot be right is refused before anything is built."""

from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.engine.settings import EngineSettings, Profile, parse_free_sizes, profiles
from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.variants import DynamicBatching, dynamic


def _config(*specs: TensorSpec, preferred: tuple[int, ...] = ()) -> ModelConfig:
    stem = onnx_config("m", specs, specs, max_batch_size=32, instances=Instances())
    return dynamic(stem, DynamicBatching(preferred_batch_sizes=preferred))


IMAGE = TensorSpec("image", "TYPE_FP32", (3, 32, 32))
IDS = TensorSpec("ids", "TYPE_INT64", (-1,))
MASK = TensorSpec("mask", "TYPE_INT64", (-1,))


@pytest.mark.parametrize(
    ("preferred", "usual_batch", "expected"), [((), None, 32), ((4, 16), None, 16), ((4, 16), 8, 8), ((), 1, 1)]
)
def test_the_usual_batch_is_the_preferred_one(
    preferred: tuple[int, ...], usual_batch: int | None, expected: int
) -> None:
    """Batches go from 1 to the maximum, tuned for the given, the largest preferred or the largest size."""
    (profile,) = profiles(_config(IMAGE, preferred=preferred), {}, usual_batch=usual_batch)
    assert profile == Profile("image", (1, 3, 32, 32), (expected, 3, 32, 32), (32, 3, 32, 32))


def test_free_sizes_take_their_own_range() -> None:
    """One range serves every free axis, and an input may have its own."""
    found = profiles(_config(IDS, MASK), {"": (8, 32, 128), "mask": (1, 2, 3)})
    assert found == (Profile("ids", (1, 8), (32, 32), (32, 128)), Profile("mask", (1, 1), (32, 2), (32, 3)))


@pytest.mark.parametrize(
    ("config", "sizes", "usual_batch", "words"),
    [
        (_config(IDS), {}, None, "Input 'ids' has the free size -1.*--sizes ids=8,32,128"),
        (_config(IDS), {"idz": (1, 2, 3)}, None, "has no input 'idz'.*ids"),
        (_config(IMAGE), {}, 64, "usual batch is 64: expected 1 to 32"),
        (ModelConfig(name="m"), {}, None, "max_batch_size 0"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    config: ModelConfig, sizes: Any, usual_batch: int | None, words: str
) -> None:
    """A free axis without a range, an unknown input and a batch outside are named."""
    with pytest.raises(InvalidInput, match=words):
        profiles(config, sizes, usual_batch=usual_batch)


def test_sizes_are_read_from_text() -> None:
    """A range for all inputs and one for an input with signs in its name."""
    assert parse_free_sizes(["8,32,128", "a/b:0=1,1,4"]) == {"": (8, 32, 128), "a/b:0": (1, 1, 4)}


@pytest.mark.parametrize("text", ["", "8", "8,32", "8,32,16", "32,8,128", "a,b,c", "-1,2,3", "0,0,0", "x=1,2,3,4"])
def test_a_wrong_range_is_explained(text: str) -> None:
    """Anything but three rising numbers is refused with an example."""
    with pytest.raises(InvalidInput, match="MIN,USUAL,MAX"):
        parse_free_sizes([text])


def test_a_range_given_twice_is_refused() -> None:
    """Two ranges for one input contradict each other."""
    with pytest.raises(InvalidInput, match="given twice"):
        parse_free_sizes(["1,2,3", "2,3,4"])


@pytest.mark.parametrize(
    ("changes", "words"), [({"precision": "fp8"}, "fp32, fp16, bf16, int8"), ({"workspace_mib": 0}, "workspace is 0")]
)
def test_wrong_settings_are_refused(changes: dict[str, Any], words: str) -> None:
    """An unknown precision and an empty workspace are no settings."""
    with pytest.raises(InvalidInput, match=words):
        EngineSettings(**({"onnx_file": "model.onnx", "precision": "fp16", "profiles": ()} | changes))
