"""What the embedded `onnxruntime` backend makes of a configuration, where no server here can show it."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tritonbatch.server import embedded

BACKEND = Path(embedded.__file__).parent / "backends" / "onnxruntime" / "model.py"
CPU = {"model_instance_kind": "CPU", "model_instance_device_id": "0"}
GPU = {"model_instance_kind": "GPU", "model_instance_device_id": "1"}


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The backend's module, with a stand-in for the one that only Triton's stub provides."""
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", ModuleType("triton_python_backend_utils"))
    spec = importlib.util.spec_from_file_location("backend_under_test", BACKEND)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def accelerated(name: str, **parameters: str) -> dict[str, Any]:
    """A configuration with one accelerator, as Triton hands it over."""
    accelerator = {"name": name, "parameters": parameters}
    return {"optimization": {"execution_accelerators": {"gpu_execution_accelerator": [accelerator]}}}


@pytest.mark.parametrize(
    ("instance", "config", "expected"),
    [
        (CPU, {}, ["CPUExecutionProvider"]),
        (CPU, accelerated("tensorrt", precision_mode="FP16"), ["CPUExecutionProvider"]),
        (GPU, {}, [("CUDAExecutionProvider", {"device_id": "1"}), "CPUExecutionProvider"]),
        (
            GPU,
            accelerated("cuda", arena_extend_strategy="kSameAsRequested"),
            [
                ("CUDAExecutionProvider", {"device_id": "1", "arena_extend_strategy": "kSameAsRequested"}),
                "CPUExecutionProvider",
            ],
        ),
        (
            GPU,
            accelerated(
                "tensorrt",
                precision_mode="FP16",
                max_workspace_size_bytes="1024",
                trt_engine_cache_enable="1",
                trt_profile_max_shapes="x:8x4",
            ),
            [
                (
                    "TensorrtExecutionProvider",
                    {
                        "device_id": "1",
                        "trt_engine_cache_enable": "1",
                        "trt_profile_max_shapes": "x:8x4",
                        "trt_fp16_enable": "1",
                        "trt_max_workspace_size": "1024",
                    },
                ),
                ("CUDAExecutionProvider", {"device_id": "1"}),
                "CPUExecutionProvider",
            ],
        ),
    ],
)
def test_execution_providers_follow_the_configuration(
    backend: ModuleType, instance: dict[str, str], config: dict[str, Any], expected: list[Any]
) -> None:
    """On a GPU TensorRT comes before CUDA when it is named, with ONNX Runtime's names for Triton's settings."""
    assert backend._providers(instance, config) == expected
