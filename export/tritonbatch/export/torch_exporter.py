"""A torch module to an ONNX file with a dynamic batch axis. Knows nothing about whether the result is right."""

from __future__ import annotations

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonbatch.errors import ExportRejected, NotSupported
from tritonbatch.export.onnx_file import INLINE_LIMIT_BYTES
from tritonbatch.export.rename import rename_tensors
from tritonbatch.models.model import Arrays, Model
from tritonbatch.models.optional import needing

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram

OPSET = 18
# The exporter takes a size of 1 for a constant, so the example that it traces has more rows.
_EXAMPLE_BATCH = 2
_NO_TORCH_TYPE = ("TYPE_STRING", "TYPE_BF16")


def export_torch(model: Model, path: Path) -> None:
    """Write the module of *model* to *path* as ONNX, weights beside it when they do not fit into one file.

    Raises:
        ExportRejected: The exporter cannot express the module.
        NotSupported: torch or onnxscript is not installed, or a tensor is of a type that cannot be exchanged.
    """
    with needing("exporting a torch module", "models"):
        import onnxscript  # noqa: F401, PLC0415 - torch says so too late and at length
        import torch  # noqa: PLC0415

    check_exchangeable(model)
    example = module_arguments(model, model.sample(_EXAMPLE_BATCH, np.random.default_rng(0)))
    with _explained(model), _quiet():
        if isinstance(model.module, torch.jit.ScriptModule):
            _export_torchscript(model, example, path)
        else:
            _save(
                torch.onnx.export(
                    model.module, example, dynamic_shapes=_dynamic_shapes(model), dynamo=True, **_common(model)
                ),
                model,
                path,
            )


def export_program(program: ExportedProgram, model: Model, path: Path) -> None:
    """Write *program*, which *model* describes, to *path* as ONNX; its dynamic sizes are in it.

    Raises:
        ExportRejected, NotSupported: See ``export_torch``.
    """
    with needing("exporting a torch program", "models"):
        import onnxscript  # noqa: F401, PLC0415
        import torch  # noqa: PLC0415

    check_exchangeable(model)
    with _explained(model), _quiet():
        _save(torch.onnx.export(program, dynamo=True, **_common(model)), model, path)


def _common(model: Model) -> dict[str, Any]:
    return {
        "verbose": False,
        "opset_version": OPSET,
        "input_names": [spec.name for spec in model.inputs],
        "output_names": [spec.name for spec in model.outputs],
    }


def _save(program: Any, model: Model, path: Path) -> None:
    program.save(path, external_data=_weight_bytes(model.module) > INLINE_LIMIT_BYTES)


def _export_torchscript(model: Model, example: tuple[torch.Tensor, ...], path: Path) -> None:
    """By the older exporter, the only one that reads TorchScript; it refuses names that begin with a digit."""
    import onnx  # noqa: PLC0415
    import torch  # noqa: PLC0415

    inputs = {f"given_input_{i}": spec for i, spec in enumerate(model.inputs)}
    outputs = {f"given_output_{i}": spec for i, spec in enumerate(model.outputs)}
    free = {
        name: {0: "batch"} | {axis: f"size_{axis}" for axis, size in enumerate(spec.dims, start=1) if size == -1}
        for name, spec in (inputs | outputs).items()
    }
    names = {"input_names": list(inputs), "output_names": list(outputs)}
    torch.onnx.export(model.module, example, str(path), dynamic_axes=free, dynamo=False, **(_common(model) | names))
    proto = onnx.load(path)
    rename_tensors(proto, {name: spec.name for name, spec in (inputs | outputs).items()})
    large = _weight_bytes(model.module) > INLINE_LIMIT_BYTES
    onnx.save(proto, path, save_as_external_data=large, location=f"{path.name}.data")


@contextmanager
def _explained(model: Model) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise ExportRejected(
            f"torch cannot export model {model.name!r} to ONNX: {essence(error)}; expected a module whose operations "
            "do not depend on the values in its tensors or on a fixed batch size; rewrite that line of its forward"
        ) from error


def module_arguments(model: Model, rows: Arrays) -> tuple[torch.Tensor, ...]:
    """*rows* as tensors in the order of the inputs, on the device of the module."""
    import torch  # noqa: PLC0415

    device = next((tensor.device for tensor in model.module.parameters()), torch.device("cpu"))
    return tuple(torch.from_numpy(np.array(rows[spec.name])).to(device) for spec in model.inputs)


def essence(error: BaseException) -> str:
    """The sentence of *error* that says what is wrong, and the line of code that it points at if it does."""
    while error.__cause__ is not None:
        error = error.__cause__
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    first = (lines[0] if lines else type(error).__name__).rstrip(".:;")
    # Torch quotes the code as a traceback does: File "…", line 12, in forward
    quoted = [after for before, after in pairwise(lines) if re.match(r'File ".*", line \d+', before)]
    return f"{first} (at {quoted[-1]!r})" if quoted else first


def check_exchangeable(model: Model) -> None:
    """Refuse a model with a tensor whose type torch and NumPy cannot exchange."""
    for spec in (*model.inputs, *model.outputs):
        if spec.data_type in _NO_TORCH_TYPE:
            raise NotSupported(
                f"tensor {spec.name!r} of model {model.name!r} is {spec.data_type}, which cannot be exchanged between "
                "torch and NumPy for verification; convert it inside the module and expose TYPE_FP32 or an integer"
            )


def _dynamic_shapes(model: Model) -> tuple[dict[int, Any], ...]:
    from torch.export import Dim  # noqa: PLC0415

    batch = Dim("batch")
    # Inputs may share the other free sizes (ids and mask have one length), which AUTO finds out.
    return tuple(
        {0: batch} | {axis: Dim.AUTO for axis, size in enumerate(spec.dims, start=1) if size == -1}
        for spec in model.inputs
    )


def _weight_bytes(module: torch.nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.state_dict().values())


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the exporter's remarks off the terminal; what matters of them is in the exception."""
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        # A failed trace is printed to stderr by no logger. Stdout stays, since a progress display draws there.
        with warnings.catch_warnings(), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)
