"""What config.pbtxt says for TensorRT: pure functions from one ModelConfig to another, as the variants are.

Two ways: the TensorRT backend serves an engine that was built before; or ONNX Runtime builds engines itself when the
model loads, through its TensorRT execution provider, and keeps them in a cache.
"""

from __future__ import annotations

from collections.abc import Callable

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.engine.settings import PLAN_FILE, EngineSettings, Profile
from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import copied
from tritonbatch.repository.settings import on_gpus

PLAN_VARIANT = "tensorrt"
ACCELERATED_VARIANT = "onnxruntime-tensorrt"


def served_by_tensorrt(config: ModelConfig) -> ModelConfig:
    """*config* served from model.plan by the TensorRT backend on every GPU; scheduler and shapes stay."""
    changed = on_gpus(copied(config))
    changed.backend, changed.platform, changed.default_model_filename = "tensorrt", "tensorrt_plan", PLAN_FILE
    # ONNX Runtime's threads mean nothing to this backend.
    for key in [key for key in changed.parameters if key.endswith("_thread_count")]:
        del changed.parameters[key]
    changed.optimization.ClearField("execution_accelerators")
    return changed


def accelerated_by_tensorrt(config: ModelConfig, settings: EngineSettings, cache_folder: str) -> ModelConfig:
    """*config* served by ONNX Runtime with its TensorRT provider, which builds for the profiles of *settings*.

    *cache_folder* is on the server, is made if its parent exists, and has to differ for another model: the cache
    looks at names and shapes, not at weights. For int8 the served file is the quantized one.

    Raises:
        InvalidInput: an input's name cannot stand in ONNX Runtime's list of shapes.
    """
    changed = on_gpus(copied(config))
    changed.backend, changed.platform = "onnxruntime", ""
    accelerators = changed.optimization.execution_accelerators
    accelerators.Clear()
    accelerator = accelerators.gpu_execution_accelerator.add(name="tensorrt")
    for key, value in _parameters(settings, cache_folder).items():
        accelerator.parameters[key] = value
    if settings.precision == "int8":
        changed.default_model_filename = settings.onnx_file
    return changed


def _parameters(settings: EngineSettings, cache_folder: str) -> dict[str, str]:
    # Every value is text. The device is passed on only if there is a parameter at all, and there always is.
    return {
        "precision_mode": settings.precision.upper(),
        "max_workspace_size_bytes": str(settings.workspace_mib * 2**20),
        "trt_engine_cache_enable": "true",
        "trt_engine_cache_path": cache_folder,
        "trt_timing_cache_enable": "true",
        "trt_timing_cache_path": cache_folder,
        "trt_profile_min_shapes": _shapes(settings, lambda profile: profile.smallest),
        "trt_profile_opt_shapes": _shapes(settings, lambda profile: profile.usual),
        "trt_profile_max_shapes": _shapes(settings, lambda profile: profile.largest),
    }


def _shapes(settings: EngineSettings, pick: Callable[[Profile], tuple[int, ...]]) -> str:
    for profile in settings.profiles:
        if ":" in profile.name or "," in profile.name:
            raise InvalidInput(
                f"Input {profile.name!r} has ':' or ',' in its name: expected neither, because ONNX Runtime's list of "
                "profile shapes cannot quote them; build an engine instead, or rename the input."
            )
    return ",".join(f"{profile.name}:{'x'.join(str(size) for size in pick(profile))}" for profile in settings.profiles)
