"""Triton's names of data types and the NumPy types that hold them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

# TYPE_BF16 is missing: NumPy has no type of its own for it.
_NUMPY_TYPES: Mapping[str, np.dtype[Any]] = {
    "TYPE_BOOL": np.dtype(np.bool_),
    "TYPE_UINT8": np.dtype(np.uint8),
    "TYPE_UINT16": np.dtype(np.uint16),
    "TYPE_UINT32": np.dtype(np.uint32),
    "TYPE_UINT64": np.dtype(np.uint64),
    "TYPE_INT8": np.dtype(np.int8),
    "TYPE_INT16": np.dtype(np.int16),
    "TYPE_INT32": np.dtype(np.int32),
    "TYPE_INT64": np.dtype(np.int64),
    "TYPE_FP16": np.dtype(np.float16),
    "TYPE_FP32": np.dtype(np.float32),
    "TYPE_FP64": np.dtype(np.float64),
    "TYPE_STRING": np.dtype(np.object_),
}

KNOWN = frozenset(_NUMPY_TYPES) | {"TYPE_BF16"}


def numpy_type(data_type: str) -> np.dtype[Any]:
    """The NumPy type of Triton's *data_type*; ``TYPE_BF16`` is the one that ml_dtypes registers.

    Raises:
        KeyError: *data_type* is not a name of Triton's (see ``KNOWN``).
    """
    if data_type == "TYPE_BF16":
        import ml_dtypes  # noqa: PLC0415 - comes with onnx, and few models need it

        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return _NUMPY_TYPES[data_type]


def holds(array: npt.NDArray[Any], data_type: str) -> bool:
    """Whether *array* is of exactly the type that *data_type* names; any kind of text counts as ``TYPE_STRING``."""
    if data_type == "TYPE_STRING":
        return array.dtype.kind in "OUS"
    return array.dtype == numpy_type(data_type)


def triton_type(kind: np.dtype[Any]) -> str | None:
    """Triton's name for the NumPy type *kind*; None if it has none."""
    return next((name for name, known in _NUMPY_TYPES.items() if known == kind), None)
