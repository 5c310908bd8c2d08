"""A verified FP32 graph to one of lower precision, with the same inputs and outputs.

From TensorRT 11 on the types of the graph are the types of the engine: the builder's precision flags and its
calibrator are gone, and TensorRT 10 calls them deprecated. So the graph itself is changed here, once, for both, and
what it lost is measured on this machine before any GPU sees it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonbatch.engine.settings import check_precision
from tritonbatch.errors import ExportRejected, InvalidInput
from tritonbatch.export.onnx_file import INLINE_LIMIT_BYTES, MODEL_FILE, read_onnx
from tritonbatch.export.samples import SAMPLES_FILE
from tritonbatch.export.session import Session
from tritonbatch.models.model import Arrays
from tritonbatch.models.optional import needing
from tritonbatch.whole_file import whole_file

if TYPE_CHECKING:
    import onnx

CHECKED_ROWS = 16


@dataclass(frozen=True, slots=True)
class Lowered:
    """The graph at *path*; *deviation* is |lowered - original| / |original| of the worst output, None if not known."""

    path: Path
    deviation: float | None


def lower_precision(version_directory: Path, precision: str) -> Lowered:
    """Write model.<precision>.onnx beside the model.onnx of *version_directory*; FP32 is the file itself.

    INT8 is calibrated with the rows of samples.npz, as is the deviation measured.

    Raises:
        InvalidInput: The precision is unknown, or there is no model.onnx or no samples.npz.
        NotSupported: ONNX Runtime is not installed.
        ExportRejected: The graph cannot be changed so.
    """
    check_precision(precision)
    source = version_directory / MODEL_FILE
    if not source.is_file():
        raise InvalidInput(f"There is no {source}: expected an exported model; run `tritonbatch export` first.")
    if precision == "fp32":
        return Lowered(source, 0.0)
    rows = read_samples(version_directory.parent / SAMPLES_FILE)
    target = version_directory / f"model.{precision}.onnx"
    with whole_file(target) as partial:
        _write(source, partial, precision, rows)
        # No CPU kernel takes BF16, so its loss shows only on the GPU.
        deviation = None if precision == "bf16" else _deviation(source, partial, rows)
    return Lowered(target, deviation)


def read_samples(path: Path) -> Arrays:
    """The rows of *path* by input.

    Raises:
        InvalidInput: There is no such file.
    """
    if not path.is_file():
        raise InvalidInput(f"There is no {path}: expected rows of every input; run `tritonbatch export` again.")
    with np.load(path) as samples:
        return {name: samples[name] for name in samples.files}


def _write(source: Path, target: Path, precision: str, rows: Arrays) -> None:
    try:
        if precision == "int8":
            from tritonbatch.engine.calibration import quantize  # noqa: PLC0415 - imports ONNX Runtime

            quantize(source, target, rows)
            return
        proto = _halved(read_onnx(source))
        if precision == "bf16":
            from tritonbatch.engine.bfloat16 import to_bfloat16  # noqa: PLC0415

            to_bfloat16(proto, read_onnx(source))
        _save(proto, target)
    except (ValueError, RuntimeError, KeyError) as error:
        raise ExportRejected(
            f"{source.name} cannot be written as {precision}: {error}; expected standard operators; choose fp32"
        ) from error


def _halved(proto: onnx.ModelProto) -> onnx.ModelProto:
    with needing("lowering a model's precision", "cpu"):
        from onnxruntime.transformers.float16 import convert_float_to_float16  # noqa: PLC0415
        from onnxruntime.transformers.onnx_model import OnnxModel  # noqa: PLC0415

    halved: Any = convert_float_to_float16(proto, keep_io_types=True)
    # The converter appends its casts at the end, where the checker refuses them.
    OnnxModel(halved).topological_sort()
    result: onnx.ModelProto = halved
    return result


def _save(proto: onnx.ModelProto, path: Path) -> None:
    import onnx  # noqa: PLC0415

    if proto.ByteSize() > INLINE_LIMIT_BYTES:
        raise ExportRejected(f"{path.name} would have {proto.ByteSize():,} bytes, expected under 2 GiB; choose fp32")
    onnx.save(proto, path)


def _deviation(source: Path, lowered: Path, rows: Arrays) -> float:
    few = {name: array[:CHECKED_ROWS] for name, array in rows.items()}
    batch = len(next(iter(few.values())))
    # As written: fused INT8 products saturate on a CPU without VNNI, which says nothing about a GPU.
    expected, got = Session(source).run(few, batch), Session(lowered, as_written=True).run(few, batch)
    floats = [name for name, array in expected.items() if array.dtype.kind == "f"]
    return max((_relative(got[name], expected[name]) for name in floats), default=0.0)


def _relative(got: Any, expected: Any) -> float:
    return float(np.linalg.norm(got.astype(np.float64) - expected) / (np.linalg.norm(expected) or 1.0))
