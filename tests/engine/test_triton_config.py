"""What config.pbtxt says for TensorRT: every input's shapes, text values, and nothing that a backend refuses."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.engine.settings import EngineSettings, profiles
from tritonbatch.engine.triton_config import accelerated_by_tensorrt, served_by_tensorrt
from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.repository.variants import DynamicBatching, dynamic


def _config(name: str = "x") -> ModelConfig:
    inputs = (TensorSpec(name, "TYPE_FP32", (64,)), TensorSpec("ids", "TYPE_INT64", (-1,)))
    stem = onnx_config("m", inputs, (TensorSpec("y", "TYPE_FP32", (8,)),), max_batch_size=32, instances=Instances())
    return dynamic(stem, DynamicBatching(preferred_batch_sizes=(16,)))


def _settings(config: ModelConfig, precision: str = "fp16") -> EngineSettings:
    return EngineSettings(
        onnx_file=f"model.{precision}.onnx", precision=precision, profiles=profiles(config, {"": (8, 32, 128)})
    )


def test_the_accelerator_names_every_input_and_a_cache() -> None:
    """Shapes for all inputs, precision, and both caches, every value as text, and at least one parameter."""
    config = _config()
    before = config.SerializeToString(deterministic=True)
    changed = accelerated_by_tensorrt(config, _settings(config), "/tmp/cache")  # noqa: S108
    assert config.SerializeToString(deterministic=True) == before
    (accelerator,) = changed.optimization.execution_accelerators.gpu_execution_accelerator
    assert accelerator.name == "tensorrt"
    assert dict(accelerator.parameters) == {
        "precision_mode": "FP16",
        "max_workspace_size_bytes": str(4096 * 2**20),
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": "/tmp/cache",  # noqa: S108
        "trt_timing_cache_enable": "true",
        "trt_timing_cache_path": "/tmp/cache",  # noqa: S108
        "trt_profile_min_shapes": "x:1x64,ids:1x8",
        "trt_profile_opt_shapes": "x:16x64,ids:16x32",
        "trt_profile_max_shapes": "x:32x64,ids:32x128",
    }
    assert changed.backend == "onnxruntime"
    assert changed.instance_group[0].kind == changed.instance_group[0].KIND_GPU
    assert text_format.Parse(config_text(changed), ModelConfig()) == changed


@pytest.mark.parametrize(("precision", "file"), [("fp32", ""), ("bf16", ""), ("int8", "model.int8.onnx")])
def test_int8_is_served_from_the_quantized_file(precision: str, file: str) -> None:
    """The ranges of INT8 are in its graph; ONNX Runtime lowers the others by itself."""
    config = _config()
    changed = accelerated_by_tensorrt(config, _settings(config, precision), "/cache")
    assert changed.default_model_filename == file


@pytest.mark.parametrize("name", ["yolonms_layer_1/ExpandDims_1:0", "a,b"])
def test_a_name_that_cannot_be_listed_is_refused(name: str) -> None:
    """ONNX Runtime splits its list of shapes at colons and commas, and has no quotes."""
    config = _config(name)
    with pytest.raises(InvalidInput, match=r"has ':' or ',' in its name.*build an engine instead"):
        accelerated_by_tensorrt(config, _settings(config), "/cache")


def test_an_engine_is_served_by_its_own_backend() -> None:
    """Backend, platform and file change, threads and accelerators go; tensors and scheduler stay."""
    config = _config()
    changed = served_by_tensorrt(accelerated_by_tensorrt(config, _settings(config), "/cache"))
    assert (changed.backend, changed.platform) == ("tensorrt", "tensorrt_plan")
    assert changed.default_model_filename == "model.plan"
    assert not changed.parameters
    assert not changed.optimization.HasField("execution_accelerators")
    assert changed.input == config.input
    assert changed.dynamic_batching == config.dynamic_batching
