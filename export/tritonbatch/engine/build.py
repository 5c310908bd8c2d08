"""An engine through TensorRT's Python API, on the GPU of this machine.

The builder's log is kept and only its errors are shown. Everything is written at the end, by renaming: without a GPU,
or when TensorRT refuses the graph, nothing is there that was not there before.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tritonbatch.engine.settings import PLAN_FILE, EngineSettings
from tritonbatch.errors import ExportRejected, NotSupported
from tritonbatch.export.fingerprint import sha256
from tritonbatch.whole_file import whole_file

MIB = 2**20


@dataclass(frozen=True, slots=True)
class Device:
    """The GPU that an engine is built on, as nvidia-smi names it."""

    gpu: str
    driver: str
    compute_capability: str


def build_engine(settings: EngineSettings, folder: Path) -> Path:
    """Build model.plan in *folder* from the graph there, with model.plan.json beside it; return its path.

    Raises:
        NotSupported: There is no GPU here, or TensorRT is not installed.
        ExportRejected: TensorRT cannot read the graph, or cannot build it for the profiles.
    """
    api, device = load_tensorrt(), device_here()
    timing_cache = folder / settings.timing_cache
    plan, cache = serialized(api, settings, folder, timing_cache.read_bytes() if timing_cache.exists() else b"")
    record = {
        "gpu": device.gpu,
        "compute_capability": device.compute_capability,
        "driver": device.driver,
        "tensorrt": api.__version__,
        "onnx_sha256": sha256(folder / settings.onnx_file),
        "settings": settings.as_record(),
    }
    _write(timing_cache, cache)
    _write(folder / f"{PLAN_FILE}.json", (json.dumps(record, indent=2) + "\n").encode())
    _write(folder / PLAN_FILE, plan)
    return folder / PLAN_FILE


def load_tensorrt() -> Any:
    """The tensorrt module.

    Raises:
        NotSupported: It is not installed, or its libraries do not load.
    """
    try:
        return importlib.import_module("tensorrt")
    except ImportError as error:
        raise NotSupported(
            f"building a TensorRT engine here needs the package tensorrt ({error}); install it with pip install "
            "'tritonbatch[gpu]' on a machine with an NVIDIA GPU, or write a script for the container with --script"
        ) from error


def device_here() -> Device:
    """The first GPU of this machine.

    Raises:
        NotSupported: There is none, or no driver for it.
    """
    command = shutil.which("nvidia-smi")
    try:
        query = [command or "nvidia-smi", "--query-gpu=name,driver_version,compute_cap", "--format=csv,noheader"]
        first = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.splitlines()[0]
        gpu, driver, capability = (part.strip() for part in first.split(","))
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        raise NotSupported(
            "building a TensorRT engine needs an NVIDIA GPU with its driver, and nvidia-smi finds none here; run it "
            "where the model will be served, or write a script for the container with --script"
        ) from error
    return Device(gpu, driver, capability)


def serialized(api: Any, settings: EngineSettings, folder: Path, timing_cache: bytes = b"") -> tuple[bytes, bytes]:
    """The engine and the timing cache, as bytes, from the TensorRT module *api*.

    Raises:
        ExportRejected: TensorRT cannot read the graph, or cannot build it for the profiles.
    """
    log = _log(api)
    builder = api.Builder(log)
    # Strongly typed: the graph's own types are the engine's, in TensorRT 10 by this flag and from 11 on always.
    flag = getattr(api.NetworkDefinitionCreationFlag, "STRONGLY_TYPED", None)
    network = builder.create_network(0 if flag is None else 1 << int(flag))
    parser = api.OnnxParser(network, log)
    if not parser.parse_from_file(str(folder / settings.onnx_file)):
        reasons = "; ".join(parser.get_error(i).desc() for i in range(parser.num_errors))
        raise ExportRejected(
            f"TensorRT {api.__version__} cannot read {settings.onnx_file}: {reasons.strip().rstrip('.')}; replace that "
            "operator, or serve the model with ONNX Runtime's CUDA provider"
        )
    config = _config(api, builder, settings)
    _add_profile(builder, config, network, settings)
    cache = config.create_timing_cache(timing_cache)
    config.set_timing_cache(cache, ignore_mismatch=False)
    plan = builder.build_serialized_network(network, config)
    if plan is None:
        raise ExportRejected(
            f"TensorRT {api.__version__} cannot build {settings.onnx_file} for these profiles: {log.reason()}; correct "
            "the sizes, give it a larger workspace, or choose another precision"
        )
    return bytes(plan), bytes(config.get_timing_cache().serialize())


def _config(api: Any, builder: Any, settings: EngineSettings) -> Any:
    config = builder.create_builder_config()
    config.set_memory_pool_limit(api.MemoryPoolType.WORKSPACE, settings.workspace_mib * MIB)
    if settings.version_compatible:
        config.set_flag(api.BuilderFlag.VERSION_COMPATIBLE)
    if settings.hardware_compatible:
        config.hardware_compatibility_level = api.HardwareCompatibilityLevel.AMPERE_PLUS
    return config


def _add_profile(builder: Any, config: Any, network: Any, settings: EngineSettings) -> None:
    inputs = {network.get_input(i).name for i in range(network.num_inputs)}
    profile = builder.create_optimization_profile()
    for each in settings.profiles:
        if each.name not in inputs:
            raise ExportRejected(
                f"{settings.onnx_file} has no input {each.name!r}, which the configuration lists, expected one of "
                f"{', '.join(sorted(inputs))}; export the model again"
            )
        profile.set_shape(each.name, each.smallest, each.usual, each.largest)
    if not profile or config.add_optimization_profile(profile) < 0:
        raise ExportRejected(f"TensorRT refuses the profile {settings.profiles}; expected rising sizes; correct them")


def _log(api: Any) -> Any:
    """TensorRT's logger that keeps what went wrong; made here, since its class is in the package."""

    class Log(api.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            api.ILogger.__init__(self)
            self.errors: list[str] = []

        def log(self, severity: Any, message: str) -> None:
            if severity in (api.ILogger.Severity.ERROR, api.ILogger.Severity.INTERNAL_ERROR):
                self.errors.append(message)

        def reason(self) -> str:
            return self.errors[-1].strip().rstrip(".") if self.errors else "it gives no reason"

    return Log()


def _write(path: Path, content: bytes) -> None:
    with whole_file(path) as temporary:
        temporary.write_bytes(content)
