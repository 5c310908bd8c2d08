"""INT8 with explicit quantize and dequantize nodes, their ranges found by ONNX Runtime's entropy calibrator."""

from __future__ import annotations

import hashlib
import inspect
import io
import logging
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from tritonbatch.errors import NotSupported
from tritonbatch.export.fingerprint import sha256
from tritonbatch.models.model import Arrays
from tritonbatch.models.optional import needing

# What TensorRT runs fast in INT8. Of a product, only with weights: scores of attention lose too much.
OPERATORS = ["MatMul", "Gemm", "Conv"]
ROWS_PER_RUN = 8


def quantize(source: Path, target: Path, rows: Arrays) -> None:
    """Write the graph at *source* to *target* with INT8 weights, per channel, and INT8 inputs of its large operators.

    The ranges are kept in calibration-<hash>.json beside *source*, where a second run with the same model and *rows*
    finds them.

    Raises:
        NotSupported: ONNX Runtime is not installed, or too old.
    """
    with needing("INT8 calibration", "cpu"):
        from onnxruntime import quantization  # noqa: PLC0415

    if "calibration_cache_path" not in inspect.signature(quantization.quantize_static).parameters:
        raise NotSupported("INT8 needs an ONNX Runtime that can keep a calibration; upgrade onnxruntime")
    cache = cache_file(source, rows)
    with _quiet():
        quantization.quantize_static(
            str(source),
            str(target),
            _Reader(rows),
            quant_format=quantization.QuantFormat.QDQ,
            op_types_to_quantize=OPERATORS,
            per_channel=True,
            activation_type=quantization.QuantType.QInt8,
            weight_type=quantization.QuantType.QInt8,
            calibrate_method=quantization.CalibrationMethod.Entropy,
            calibration_cache_path=str(cache),
            # TensorRT takes symmetric ranges only. An output that is quantized as well cost up to half of the result.
            extra_options={
                "ActivationSymmetric": True,
                "WeightSymmetric": True,
                "QuantizeBias": False,
                "MatMulConstBOnly": True,
                "OpTypesToExcludeOutputQuantization": OPERATORS,
            },
        )


def cache_file(source: Path, rows: Arrays) -> Path:
    """Where the ranges of the graph at *source* for *rows* are kept."""
    digest = hashlib.sha256(sha256(source).encode())
    for name in sorted(rows):
        digest.update(name.encode() + rows[name].tobytes())
    return source.parent / f"calibration-{digest.hexdigest()[:12]}.json"


class _Reader:
    """The rows in small batches, as ONNX Runtime's calibrator asks for them."""

    def __init__(self, rows: Arrays) -> None:
        self._batches = _batches(rows)

    def get_next(self) -> Arrays | None:
        return next(self._batches, None)

    def __iter__(self) -> Iterator[Arrays]:
        return self._batches


def _batches(rows: Arrays) -> Iterator[Arrays]:
    for start in range(0, len(next(iter(rows.values()))), ROWS_PER_RUN):
        yield {name: array[start : start + ROWS_PER_RUN] for name, array in rows.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the calibrator's prints and advice off the terminal."""
    disabled: Any = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(disabled)
