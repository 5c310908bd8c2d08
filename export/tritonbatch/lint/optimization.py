"""Rules about `optimization`: CUDA graphs, and the execution accelerators of ONNX Runtime."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject

PATH = "optimization.execution_accelerators"
GPU_ACCELERATORS = ("tensorrt", "cuda")
CPU_ACCELERATORS = ("openvino",)
PRECISIONS = ("FP32", "FP16", "BF16", "INT8")
_NUMBER, _SWITCH, _TEXT = (
    re.compile(r"-?\d+"),
    re.compile(r"true|false|0|1", re.IGNORECASE),
    re.compile(r".*", re.DOTALL),
)
# The keys that the onnxruntime backend accepts for TensorRT, with what their values may be.
TENSORRT_KEYS: Mapping[str, re.Pattern[str]] = {
    "precision_mode": _TEXT,
    "max_workspace_size_bytes": _NUMBER,
    "trt_max_partition_iterations": _NUMBER,
    "trt_min_subgraph_size": _NUMBER,
    "int8_calibration_table_name": _TEXT,
    "int8_use_native_calibration_table": _SWITCH,
    "trt_dla_enable": _SWITCH,
    "trt_dla_core": _NUMBER,
    "trt_engine_cache_enable": _SWITCH,
    "trt_engine_cache_path": _TEXT,
    "trt_engine_cache_prefix": _TEXT,
    "trt_dump_subgraphs": _SWITCH,
    "trt_force_sequential_engine_build": _SWITCH,
    "trt_context_memory_sharing_enable": _SWITCH,
    "trt_layer_norm_fp32_fallback": _SWITCH,
    "trt_timing_cache_enable": _SWITCH,
    "trt_timing_cache_path": _TEXT,
    "trt_force_timing_cache": _SWITCH,
    "trt_detailed_build_log": _SWITCH,
    "trt_build_heuristics_enable": _SWITCH,
    "trt_sparsity_enable": _SWITCH,
    "trt_builder_optimization_level": _NUMBER,
    "trt_auxiliary_streams": _NUMBER,
    "trt_tactic_sources": _TEXT,
    "trt_extra_plugin_lib_paths": _TEXT,
    "trt_profile_min_shapes": _TEXT,
    "trt_profile_max_shapes": _TEXT,
    "trt_profile_opt_shapes": _TEXT,
    "trt_cuda_graph_enable": _SWITCH,
    "trt_dump_ep_context_model": _SWITCH,
    "trt_ep_context_file_path": _TEXT,
    "trt_ep_context_embed_mode": _NUMBER,
}


def _accelerators(subject: Subject) -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    chosen = subject.config.optimization.execution_accelerators
    if subject.backend != "onnxruntime":
        return
    for kind, allowed in (("gpu", GPU_ACCELERATORS), ("cpu", CPU_ACCELERATORS)):
        for index, entry in enumerate(getattr(chosen, f"{kind}_execution_accelerator")):
            yield f"{PATH}.{kind}_execution_accelerator[{index}]", entry, allowed


def _accelerator_unknown(subject: Subject) -> Iterator[Problem]:
    for path, entry, allowed in _accelerators(subject):
        if entry.name not in allowed:
            message = f'accelerator "{entry.name}" is unknown, expected {" or ".join(allowed)}'
            yield Problem(f"{path}.name", message, f'name: "{allowed[0]}"')


def _tensorrt_parameters(subject: Subject) -> Iterator[tuple[str, str, str]]:
    for path, entry, _ in _accelerators(subject):
        for key in sorted(entry.parameters) if entry.name == "tensorrt" else ():
            yield f'{path}.parameters["{key}"]', key, entry.parameters[key]


def _key_unknown(subject: Subject) -> Iterator[Problem]:
    for path, key, _ in _tensorrt_parameters(subject):
        if key not in TENSORRT_KEYS:
            close = difflib.get_close_matches(key, TENSORRT_KEYS, n=1, cutoff=0.5)
            fix = f'key: "{close[0]}"' if close else f"remove it; known are {', '.join(TENSORRT_KEYS)}"
            yield Problem(path, f'TensorRT has no parameter "{key}", expected one of its own', fix)


def _value_invalid(subject: Subject) -> Iterator[Problem]:
    for path, key, value in _tensorrt_parameters(subject):
        if key == "precision_mode" and value not in PRECISIONS:
            message = f'precision_mode is "{value}", expected {", ".join(PRECISIONS)}'
            yield Problem(path, message, 'value: "FP16"')
        elif key in TENSORRT_KEYS and not TENSORRT_KEYS[key].fullmatch(value):
            expected = "true or false" if TENSORRT_KEYS[key] is _SWITCH else "a whole number"
            yield Problem(path, f'{key} is "{value}", expected {expected}, as text', 'value: "1"')


def _without_parameters(subject: Subject) -> Iterator[Problem]:
    for path, entry, _ in _accelerators(subject):
        if entry.name == "tensorrt" and not entry.parameters:
            message = "without any parameter every instance uses GPU 0, expected at least one parameter"
            yield Problem(f"{path}.parameters", message, 'parameters { key: "precision_mode" value: "FP32" }')


def _cuda_ignored(subject: Subject) -> Iterator[Problem]:
    optimization = subject.config.optimization
    set_here = {"cuda": optimization.HasField("cuda"), "eager_batching": optimization.eager_batching}
    for name, is_set in set_here.items():
        if is_set and subject.backend != "tensorrt":
            message = f"optimization.{name} is ignored by backend {subject.backend or 'none'}, expected tensorrt"
            yield Problem(f"optimization.{name}", message, f"remove {name}")


def _specs(subject: Subject) -> Iterator[tuple[str, Any]]:
    for index, spec in enumerate(subject.config.optimization.cuda.graph_spec):
        if subject.backend == "tensorrt":
            yield f"optimization.cuda.graph_spec[{index}]", spec


def _graph_batch(subject: Subject) -> Iterator[Problem]:
    largest = subject.config.max_batch_size
    smallest = 1 if largest else 0
    for path, spec in _specs(subject):
        if not smallest <= spec.batch_size <= largest:
            expected = f"1 to max_batch_size {largest}" if largest else "0, as max_batch_size is"
            message = f"a CUDA graph for batch size {spec.batch_size}, expected {expected}"
            yield Problem(f"{path}.batch_size", message, f"batch_size: {largest}")


def _graph_bound(subject: Subject) -> Iterator[Problem]:
    for path, spec in _specs(subject):
        if not spec.HasField("graph_lower_bound"):
            continue
        bound = spec.graph_lower_bound
        if not 1 <= bound.batch_size <= spec.batch_size:
            message = f"the lower bound's batch size is {bound.batch_size}, expected 1 to {spec.batch_size}"
            yield Problem(f"{path}.graph_lower_bound.batch_size", message, "batch_size: 1")
        for name in sorted(set(bound.input) ^ set(spec.input)):
            message = f'"{name}" is in only one of graph and lower bound, expected the same inputs in both'
            yield Problem(f'{path}.graph_lower_bound.input["{name}"]', message, "give it in both")


def _graph_bound_dims(subject: Subject) -> Iterator[Problem]:
    for path, spec in _specs(subject):
        lower = spec.graph_lower_bound.input
        for name in sorted(set(lower) & set(spec.input)):
            low, high = list(lower[name].dim), list(spec.input[name].dim)
            if len(low) != len(high) or any(a > b for a, b in zip(low, high, strict=False)):
                message = f"the lower bound of {name} is {low} for a graph of {high}, expected no dimension above it"
                yield Problem(f'{path}.graph_lower_bound.input["{name}"]', message, f"dim: {high}, or less")


def _drop_cuda(subject: Subject, config: ModelConfig) -> None:
    if subject.backend != "tensorrt":
        config.optimization.ClearField("cuda")
        config.optimization.ClearField("eager_batching")


RULES = (
    error("accelerator-unknown", "ONNX Runtime has no such execution accelerator.", _accelerator_unknown),
    error("accelerator-parameter", "TensorRT in ONNX Runtime has no such parameter.", _key_unknown),
    error("accelerator-value", "A TensorRT parameter's value is not of its kind.", _value_invalid),
    error("cuda-graph-batch", "A CUDA graph's batch size is outside 1 to max_batch_size.", _graph_batch),
    error("cuda-graph-bound", "A CUDA graph's lower bound lacks its batch size, or has other inputs.", _graph_bound),
    error("cuda-graph-bound-dims", "A CUDA graph's lower bound is above it, or of another rank.", _graph_bound_dims),
    warning("accelerator-device", "TensorRT without any parameter always uses GPU 0.", _without_parameters),
    warning("cuda-ignored", "CUDA settings that only the tensorrt backend reads.", _cuda_ignored, _drop_cuda),
)
