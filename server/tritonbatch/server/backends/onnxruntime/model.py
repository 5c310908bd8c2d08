"""Triton's `onnxruntime` backend, for the embedded server, which ships without the native one.

Triton loads this Python-based backend for `backend: "onnxruntime"` only when no libtriton_onnxruntime.so is found, so
the same repository is served natively on the GPU image. It runs in a stub process with an isolated interpreter:
it may import numpy, onnxruntime and Triton's own module, nothing else. It does not decide what is batched: `execute`
receives the requests that Triton's scheduler put together, runs them as one batch and splits the result.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort
import triton_python_backend_utils as pb_utils

# https://github.com/triton-inference-server/onnxruntime_backend: graph.level -1 basic, 1 extended, 2 disabled.
GRAPH_LEVELS = {
    -1: ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    1: ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    2: ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
}

TENSORRT_NAMES = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}

Array = npt.NDArray[Any]

_set_capsule_name = ctypes.pythonapi.PyCapsule_SetName
_set_capsule_name.argtypes = [ctypes.py_object, ctypes.c_char_p]


class TritonPythonModel:
    """One instance of one model: one ONNX Runtime session in one process."""

    def initialize(self, args: dict[str, str]) -> None:
        """Open the session that config.pbtxt describes; a failure here fails the load with its message."""
        config = json.loads(args["model_config"])
        self.batching = config["max_batch_size"] > 0
        self.inputs = [tensor["name"] for tensor in config["input"]]
        self.outputs = [tensor["name"] for tensor in config["output"]]
        if texts := [t["name"] for t in config["input"] + config["output"] if t["data_type"] == "TYPE_STRING"]:
            msg = f"tensor '{texts[0]}' is TYPE_STRING, which the embedded server cannot carry; serve it from the image"
            raise pb_utils.TritonModelException(msg)
        filename = config.get("default_model_filename") or "model.onnx"
        path = Path(args["model_repository"]) / args["model_version"] / filename
        self.session = ort.InferenceSession(str(path), _options(config), providers=_providers(args, config))

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run *requests* as one batch; every request gets its own rows back, or all get the same error."""
        try:
            feeds = [self._feed(request) for request in requests]
            rows = [len(feed[self.inputs[0]]) if self.batching else 1 for feed in feeds]
            arrays = self.session.run(self.outputs, _joined(feeds))
            return self._responses(arrays, rows)
        except Exception as error:  # noqa: BLE001 - whatever fails must reach the callers as their error
            message = f"{type(error).__name__}: {error}"
            # One error object each: two responses that share one free its memory twice, and the server crashes.
            return [pb_utils.InferenceResponse(error=pb_utils.TritonError(message)) for _ in requests]

    def _feed(self, request: Any) -> dict[str, Array]:
        feed = {}
        for name in self.inputs:
            tensor = pb_utils.get_input_tensor_by_name(request, name)
            if tensor is not None:  # an optional input may be absent
                feed[name] = _array(tensor)
        return feed

    def _responses(self, arrays: list[Array], rows: list[int]) -> list[Any]:
        if len(rows) == 1:
            return [self._response(arrays)]
        for name, array in zip(self.outputs, arrays, strict=True):
            if len(array) != sum(rows):
                msg = f"output '{name}' has {len(array)} rows for a batch of {sum(rows)}; it lacks the batch axis"
                raise ValueError(msg)
        cuts = np.cumsum(rows)[:-1]
        parts = zip(*(np.split(array, cuts) for array in arrays), strict=True)
        return [self._response(part) for part in parts]

    def _response(self, arrays: Sequence[Array]) -> Any:
        named = zip(self.outputs, arrays, strict=True)
        return pb_utils.InferenceResponse([_tensor(name, array) for name, array in named])


def _joined(feeds: list[dict[str, Array]]) -> dict[str, Array]:
    if len(feeds) == 1:
        return feeds[0]
    return {name: np.concatenate([feed[name] for feed in feeds]) for name in feeds[0]}


def _array(tensor: Any) -> Array:
    # as_numpy() and Tensor(name, array) read NumPy 1 structures: under NumPy 2 the strides, and the byte sizes of
    # results, come out as 0, so that every element is the first one. DLPack does not depend on NumPy's layout.
    return np.from_dlpack(tensor)


def _tensor(name: str, array: Array) -> Any:
    array = np.ascontiguousarray(array)
    if not array.size:
        # NumPy's strides are then all 0, which Triton takes for an order of its own and refuses.
        strides = [array.itemsize * int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim)]
        array = np.lib.stride_tricks.as_strided(array, strides=strides)
    capsule = array.__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    # Triton marks the capsule as taken with a name of its own; NumPy knows only DLPack's, and would print a traceback.
    _set_capsule_name(capsule, b"used_dltensor")
    return tensor


def _options(config: dict[str, Any]) -> ort.SessionOptions:
    options = ort.SessionOptions()
    parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
    options.intra_op_num_threads = int(parameters.get("intra_op_thread_count", 0))
    options.inter_op_num_threads = int(parameters.get("inter_op_thread_count", 0))
    if parameters.get("execution_mode") == "1":
        options.execution_mode = ort.ExecutionMode.ORT_PARALLEL
    level = config.get("optimization", {}).get("graph", {}).get("level", 0)
    options.graph_optimization_level = GRAPH_LEVELS.get(level, ort.GraphOptimizationLevel.ORT_ENABLE_ALL)
    return options


def _providers(args: dict[str, str], config: dict[str, Any]) -> list[Any]:
    """On a GPU the accelerators that the configuration names, then CUDA; the CPU takes what they cannot."""
    if args["model_instance_kind"] != "GPU":
        return ["CPUExecutionProvider"]
    accelerators = config.get("optimization", {}).get("execution_accelerators", {})
    named = {each["name"]: each.get("parameters", {}) for each in accelerators.get("gpu_execution_accelerator", [])}
    device = {"device_id": args["model_instance_device_id"]}
    providers: list[Any] = []
    if "tensorrt" in named:
        providers.append(("TensorrtExecutionProvider", {**device, **_tensorrt_options(named["tensorrt"])}))
    return [*providers, ("CUDAExecutionProvider", {**device, **named.get("cuda", {})}), "CPUExecutionProvider"]


def _tensorrt_options(parameters: dict[str, str]) -> dict[str, str]:
    """Triton's names for the accelerator's settings as ONNX Runtime's; those that begin with trt_ are the same."""
    options = {key: value for key, value in parameters.items() if key.startswith("trt_")}
    precision = parameters.get("precision_mode", "FP32")
    if precision != "FP32":
        options[f"trt_{precision.lower()}_enable"] = "1"
    for ours, theirs in TENSORRT_NAMES.items():
        if ours in parameters:
            options[theirs] = parameters[ours]
    return options
