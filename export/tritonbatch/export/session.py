"""One ONNX Runtime session on the CPU with one thread, as the reference that verification runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from tritonbatch.errors import ExportRejected
from tritonbatch.models.model import Arrays
from tritonbatch.models.optional import needing


class Session:
    """A loaded ONNX file."""

    def __init__(self, path: Path, *, as_written: bool = False) -> None:
        """Load the file at *path*; *as_written* runs its operators one by one, none fused.

        Raises:
            ExportRejected: ONNX Runtime cannot load it.
            NotSupported: ONNX Runtime is not installed.
        """
        with needing("verifying an export", "cpu"):
            import onnxruntime  # noqa: PLC0415

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = 1
        if as_written:
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4  # what goes wrong is raised as well
        try:
            self._session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise ExportRejected(
                f"ONNX Runtime cannot load {path.name}: {_first_line(error)}; expected a graph that its CPU provider "
                "runs; export it with standard operators and a supported opset"
            ) from error
        self.output_names: tuple[str, ...] = tuple(output.name for output in self._session.get_outputs())

    def run(self, rows: Arrays, batch: int) -> dict[str, npt.NDArray[Any]]:
        """The outputs by name for *batch* rows of every input.

        Raises:
            ExportRejected: The graph fails at this batch size, or returns another number of rows.
        """
        try:
            outputs = dict(zip(self.output_names, self._session.run(None, rows), strict=True))
        except Exception as error:
            raise ExportRejected(
                f"the exported graph fails at batch {batch}: {_first_line(error)}; expected it to run at every batch "
                "size; remove what fixes the size, such as a reshape to a constant, and export it again"
            ) from error
        for name, array in outputs.items():
            if array.ndim == 0 or array.shape[0] != batch:
                raise ExportRejected(
                    f"output {name!r} has shape {list(array.shape)} at batch {batch}, expected {batch} rows on axis 0; "
                    "return one row per input row, and export it again"
                )
        return outputs


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
