"""The Python model behind every model of the client's tests; the model's name says what it does.

It runs in Triton's stub process, which reads NumPy 1 structures, and under NumPy 2 takes every stride for 0. Numeric
tensors pass through DLPack instead. BYTES tensors cannot, and arrive unreadable; the tensor itself is whole, and can be
handed back.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

LONGEST_SLEEP_S = 5.0

_set_capsule_name = ctypes.pythonapi.PyCapsule_SetName
_set_capsule_name.argtypes = [ctypes.py_object, ctypes.c_char_p]
Tensors = dict[str, Any]
"""Triton's own tensors by name; an optional input that was left out is not in it."""


class TritonPythonModel:
    """One instance of one of the MODELS."""

    def initialize(self, args: dict[str, str]) -> None:
        """Find the function that the model's name stands for."""
        self.answer: Callable[[Tensors], Any] = MODELS[args["model_name"]]

    def execute(self, requests: list[Any]) -> list[Any]:
        """Answer each request on its own; one that fails gets the exception's text as its error."""
        return [self._response(request) for request in requests]

    def _response(self, request: Any) -> Any:
        try:
            output = self.answer({tensor.name(): tensor for tensor in request.inputs()})
        except Exception as error:  # noqa: BLE001 - whatever fails must reach the caller as its error
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(f"{type(error).__name__}: {error}"))
        return pb_utils.InferenceResponse([output])


def _echo(tensors: Tensors) -> Any:
    # The capsule goes from Triton to Triton, so that BF16, which NumPy cannot read, passes too.
    return pb_utils.Tensor.from_dlpack("y", tensors["x"].to_dlpack())


class _Unread:
    """Takes the place of the array that the stub would read from a BYTES tensor, and crash over."""

    def __init__(self, encoded: Any) -> None:
        pass

    def reshape(self, shape: list[int]) -> Any:
        return np.empty(shape, np.object_)


pb_utils.deserialize_bytes_tensor = _Unread  # the stub looks this name up for every BYTES input


def _text(tensors: Tensors) -> Any:
    return tensors["x"]


def _sleeper(tensors: Tensors) -> Any:
    time.sleep(min(float(_array(tensors["x"]).max(initial=0.0)), LONGEST_SLEEP_S))
    return _echo(tensors)


def _optional(tensors: Tensors) -> Any:
    a = _array(tensors["a"])
    return _tensor("y", a + (_array(tensors["b"]) if "b" in tensors else 0))


def _names(tensors: Tensors) -> Any:
    return _tensor("out/values:0", _array(tensors["in/ids:0"]).astype(np.float32) * 2)


def _failing(tensors: Tensors) -> Any:
    if _array(tensors["x"]).max(initial=0.0) > 9:
        raise ValueError("x is over 9")
    return _echo(tensors)


def _crash(tensors: Tensors) -> Any:
    if _array(tensors["x"]).max(initial=0.0) > 9:
        os._exit(1)
    return _echo(tensors)


def _free(tensors: Tensors) -> Any:
    return _tensor("y", _array(tensors["x"]).sum(axis=-1, keepdims=True))


def _array(tensor: Any) -> Any:
    return np.from_dlpack(tensor)


def _tensor(name: str, array: Any) -> Any:
    capsule = np.ascontiguousarray(array).__dlpack__()
    tensor = pb_utils.Tensor.from_dlpack(name, capsule)
    # Triton marks the capsule as taken with a name of its own; NumPy knows only DLPack's, and would print a traceback.
    _set_capsule_name(capsule, b"used_dltensor")
    return tensor


MODELS: dict[str, Callable[[Tensors], Any]] = {
    "text": _text,
    "sleeper": _sleeper,
    "optional": _optional,
    "team:names": _names,
    "half": _echo,
    "bfloat": _echo,
    "failing": _failing,
    "crash": _crash,
    "free": _free,
    "nobatch": _echo,
}
