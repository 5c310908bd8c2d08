"""TensorRT for a model that is in a repository: settings from its configuration, files into its folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.engine import build
from tritonbatch.engine.lower_precision import lower_precision
from tritonbatch.engine.settings import EngineSettings, Range, check_precision, profiles
from tritonbatch.engine.triton_config import (
    ACCELERATED_VARIANT,
    PLAN_VARIANT,
    accelerated_by_tensorrt,
    served_by_tensorrt,
)
from tritonbatch.engine.trtexec import DEFAULT_TAG, SCRIPT_FILE, trtexec_script
from tritonbatch.errors import InvalidInput
from tritonbatch.export.fingerprint import sha256
from tritonbatch.export.onnx_file import MODEL_FILE
from tritonbatch.repository.config import config_text
from tritonbatch.repository.cuda_graphs import cuda_graphs
from tritonbatch.repository.layout import variant_config, write_text_keeping_copy

Progress = Callable[[str], None]

_WHY = {
    PLAN_VARIANT: "tensorrt: model.plan on the TensorRT backend; for the kind of GPU that built it.",
    ACCELERATED_VARIANT: "onnxruntime-tensorrt: ONNX Runtime builds engines when it loads; for any GPU, slow to start.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What the user asks of TensorRT for one model; see ``EngineSettings`` for those of the same name."""

    precision: str = "fp16"
    usual_batch: int | None = None
    workspace_mib: int = 4096
    version_compatible: bool = False
    hardware_compatible: bool = False
    graph_batches: tuple[int, ...] = ()
    tag: str = DEFAULT_TAG
    cache_root: str = "/tmp"  # noqa: S108 - on the server, in its container


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What was written: *files*, the *variant* that serves them, and what the precision cost (see ``Lowered``)."""

    variant: str
    files: tuple[Path, ...]
    deviation: float | None


def build_here(
    repository: Path, model: str, wanted: Wanted, free_sizes: Mapping[str, Range], progress: Progress
) -> Prepared:
    """Build the engine on the GPU of this machine, and write the variant that serves it.

    Raises:
        NotSupported: There is no GPU here, or no TensorRT; nothing was written.
        InvalidInput, ExportRejected: See ``EngineSettings``, ``lower_precision`` and ``build_engine``.
    """
    config, version = _found(repository, model, wanted, free_sizes)
    build.load_tensorrt()
    build.device_here()
    settings, deviation = _lowered(config, version, wanted, free_sizes, progress)
    progress("build the engine")
    plan = build.build_engine(settings, version)
    variant = _write_variant(repository / model, PLAN_VARIANT, _plan_config(config, wanted))
    return Prepared(variant=PLAN_VARIANT, files=(plan, variant), deviation=deviation)


def write_script(
    repository: Path, model: str, wanted: Wanted, free_sizes: Mapping[str, Range], progress: Progress
) -> Prepared:
    """Write the script that builds the engine in the container, and the variant that serves it; needs no GPU.

    Raises:
        InvalidInput, NotSupported, ExportRejected: See ``EngineSettings`` and ``lower_precision``.
    """
    config, version = _found(repository, model, wanted, free_sizes)
    settings, deviation = _lowered(config, version, wanted, free_sizes, progress)
    script = version / SCRIPT_FILE
    write_text_keeping_copy(script, trtexec_script(settings, wanted.tag))
    script.chmod(0o755)
    variant = _write_variant(repository / model, PLAN_VARIANT, _plan_config(config, wanted))
    return Prepared(variant=PLAN_VARIANT, files=(script, variant), deviation=deviation)


def write_accelerated(
    repository: Path, model: str, wanted: Wanted, free_sizes: Mapping[str, Range], progress: Progress
) -> Prepared:
    """Write the variant in which ONNX Runtime builds its engines when the model loads; needs no GPU.

    Raises:
        InvalidInput, NotSupported, ExportRejected: See ``EngineSettings``, ``lower_precision`` and
            ``accelerated_by_tensorrt``.
    """
    config, version = _found(repository, model, wanted, free_sizes)
    # FP16 and BF16 are ONNX Runtime's own to lower; INT8 needs the ranges, which are in the quantized graph.
    settings, deviation = _lowered(config, version, wanted, free_sizes, progress, lower=wanted.precision == "int8")
    # One level, since ONNX Runtime makes only the last folder of a path.
    cache = f"{wanted.cache_root}/tritonbatch-{model}-{sha256(version / settings.onnx_file)[:12]}"
    variant = _write_variant(repository / model, ACCELERATED_VARIANT, accelerated_by_tensorrt(config, settings, cache))
    return Prepared(variant=ACCELERATED_VARIANT, files=(variant,), deviation=deviation)


def _found(repository: Path, model: str, wanted: Wanted, free_sizes: Mapping[str, Range]) -> tuple[ModelConfig, Path]:
    """The dynamic variant and the newest version; settings are checked before anything is computed."""
    check_precision(wanted.precision)
    config = variant_config(repository, model, "dynamic")
    profiles(config, free_sizes, usual_batch=wanted.usual_batch)
    _plan_config(config, wanted)
    versions = [path for path in (repository / model).iterdir() if path.name.isdigit() and (path / MODEL_FILE).exists()]
    if not versions:
        raise InvalidInput(f"{repository / model} has no version with a {MODEL_FILE}: run `tritonbatch export` first.")
    return config, max(versions, key=lambda path: int(path.name))


def _lowered(
    config: ModelConfig,
    version: Path,
    wanted: Wanted,
    free_sizes: Mapping[str, Range],
    progress: Progress,
    *,
    lower: bool = True,
) -> tuple[EngineSettings, float | None]:
    name, deviation = MODEL_FILE, None
    if lower:
        progress(f"write the graph in {wanted.precision}")
        lowered = lower_precision(version, wanted.precision)
        name, deviation = lowered.path.name, lowered.deviation
    settings = EngineSettings(
        onnx_file=name,
        precision=wanted.precision,
        profiles=profiles(config, free_sizes, usual_batch=wanted.usual_batch),
        workspace_mib=wanted.workspace_mib,
        version_compatible=wanted.version_compatible,
        hardware_compatible=wanted.hardware_compatible,
    )
    return settings, deviation


def _plan_config(config: ModelConfig, wanted: Wanted) -> ModelConfig:
    served = served_by_tensorrt(config)
    return cuda_graphs(served, wanted.graph_batches) if wanted.graph_batches else served


def _write_variant(model_directory: Path, variant: str, config: ModelConfig) -> Path:
    path = model_directory / "configs" / f"{variant}.pbtxt"
    write_text_keeping_copy(path, config_text(config, _WHY[variant]))
    return path
