"""A model to a verified version folder of the model repository, skipped when the one in place is current.

<model_directory>/<version>/model.onnx     what Triton serves
<model_directory>/<version>/export.json    what it was made from, and how it was verified
<model_directory>/samples.npz              64 rows of every input, for the load generator
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from tritonbatch.errors import InvalidInput
from tritonbatch.export import fingerprint, onnx_file
from tritonbatch.export.batch_axis import check_batch_axis, check_declared, specs_of
from tritonbatch.export.onnx_file import MODEL_FILE
from tritonbatch.export.plain_module import describe
from tritonbatch.export.plan import Plan, Progress, Target, current, execute, target_of
from tritonbatch.export.record import Built, Origin
from tritonbatch.export.samples import made_up_rows
from tritonbatch.export.torch_exporter import OPSET, export_program, export_torch
from tritonbatch.export.torch_files import read_exported_program, read_torchscript
from tritonbatch.export.verify import Sample
from tritonbatch.models.catalog import BUILT_IN, load_model, load_object
from tritonbatch.models.check import check_model
from tritonbatch.models.given import Given
from tritonbatch.models.model import Model

if TYPE_CHECKING:
    import torch

FILE_SUFFIXES = (".onnx", ".pt", ".pt2")
NOTHING = Given()


def build_spec(
    spec: str,
    model_directory: Path,
    *,
    max_batch_size: int,
    version: int = 1,
    given: Given = NOTHING,
    progress: Progress | None = None,
) -> Built:
    """Export whatever *spec* names: a built-in model, ``package.module:factory``, or an .onnx, .pt or .pt2 file.

    *given* says what a plain torch module or a TorchScript file takes, since neither says so itself.

    Raises:
        InvalidInput: There is no such thing, tensors are given to what says them itself or missing where it does not,
            or a number or the folder cannot be right.
        NotSupported: A package is missing, or a tensor's type cannot be verified.
        ExportRejected: The export failed or computes something else; the version in place is untouched.
    """
    start = time.perf_counter()
    suffix = Path(spec).suffix
    if given and (suffix == ".onnx" or spec in BUILT_IN):
        raise InvalidInput(f"{spec!r} has its inputs and outputs in it, got --input or --output; leave those out")
    if suffix == ".onnx":
        source = Path(spec)
        return build_from_file(
            source, model_directory, max_batch_size=max_batch_size, version=version, progress=progress
        )
    if suffix not in FILE_SUFFIXES and not given:
        return build_named(spec, model_directory, max_batch_size=max_batch_size, version=version, progress=progress)
    target = target_of(model_directory, version, max_batch_size, progress)
    target.progress("load the model")
    build = _build_torch_file if suffix in FILE_SUFFIXES else _build_plain_module
    return replace(build(spec, given, target), seconds=time.perf_counter() - start)


def build_named(
    spec: str, model_directory: Path, *, max_batch_size: int, version: int = 1, progress: Progress | None = None
) -> Built:
    """Export the built-in model or ``package.module:factory`` that *spec* names, as ``build_version`` does.

    A built-in model that is in place and current is recognised in milliseconds, without loading torch.

    Raises:
        InvalidInput, NotSupported: See ``load_model`` and ``build_version``.
        ExportRejected: See ``build_version``.
    """
    start = time.perf_counter()
    recipe = fingerprint.of_built_in(spec) if spec in BUILT_IN else ""
    target = target_of(model_directory, version, max_batch_size, progress, recipe)
    built = current(target, "") if recipe else None
    if built is None:
        target.progress("load the model")
        built = _build_model(load_model(spec), target)
    return replace(built, seconds=time.perf_counter() - start)


def build_version(
    model: Model, model_directory: Path, *, max_batch_size: int, version: int = 1, progress: Progress | None = None
) -> Built:
    """Export *model*, verify it for batches up to *max_batch_size* and put it in place as *version*.

    Does nothing if the version in place was made from the same model by the same tools and verified up to at least
    *max_batch_size*. *progress* is told the name of each step.

    Raises:
        InvalidInput: The model breaks its contract, or a number or the folder cannot be right.
        NotSupported: A package is missing, or a tensor's type cannot be verified.
        ExportRejected: The export failed or computes something else; the version in place is untouched.
    """
    start = time.perf_counter()
    target = target_of(model_directory, version, max_batch_size, progress)
    check_model(model)
    return replace(_build_model(model, target), seconds=time.perf_counter() - start)


def build_from_file(
    source: Path,
    model_directory: Path,
    *,
    max_batch_size: int,
    version: int = 1,
    sample: Sample | None = None,
    progress: Progress | None = None,
) -> Built:
    """Verify the .onnx file *source* and put it in place as *version*, as ``build_version`` does.

    There is no module to compare with, so the checks are those of the batch axis, of running at every batch size and
    of rows that do not depend on each other. *sample* gives rows that make sense to the model; without it they are
    made up (floats in 0 to 1, integers 0 or 1).

    Raises:
        InvalidInput: There is no such file, it is not ONNX, or a number or the folder cannot be right.
        NotSupported: A package is missing.
        ExportRejected: The file fails a check; the version in place is untouched.
    """
    start = time.perf_counter()
    target = target_of(model_directory, version, max_batch_size, progress)
    target.progress("check the file")
    proto = onnx_file.read_onnx(source)
    tensors = onnx_file.graph_tensors(proto.graph)
    check_batch_axis(tensors)
    inputs = specs_of(tensors, "input")
    plan = Plan(
        origin=Origin(source.name, fingerprint.of_file(source), "", onnx_file.opset(proto)),
        inputs=inputs,
        outputs=specs_of(tensors, "output"),
        sample=sample or (lambda batch, rng: made_up_rows(inputs, batch, rng)),
        write=lambda folder: onnx_file.write_onnx(proto, folder),
    )
    return replace(execute(plan, target), seconds=time.perf_counter() - start)


def _build_model(model: Model, target: Target, hashed: str = "", export: Callable[[Path], None] | None = None) -> Built:
    """Build *model*, whose fingerprint is *hashed* if the caller knows it, by *export* instead of the usual one."""
    target.progress("compute the fingerprint")
    plan = Plan(
        origin=Origin(model.name, hashed or fingerprint.of_model(model), target.recipe, OPSET),
        inputs=model.inputs,
        outputs=model.outputs,
        sample=model.sample,
        write=lambda folder: _write_torch(model, folder, export or (lambda path: export_torch(model, path))),
        model=model,
    )
    return execute(plan, target)


def _build_plain_module(spec: str, given: Given, target: Target) -> Built:
    loaded = load_object(spec)
    if isinstance(loaded, Model):
        raise InvalidInput(
            f"{spec!r} returns a Model, which declares its tensors, got --input or --output; leave those out"
        )
    return _build_model(describe(spec.rpartition(":")[2], cast("torch.nn.Module", loaded), given), target)


def _build_torch_file(spec: str, given: Given, target: Target) -> Built:
    source = Path(spec)
    if source.suffix == ".pt":
        model = read_torchscript(source, given)
        return _build_model(model, target, fingerprint.of_torch_file(source, model))
    model, program = read_exported_program(source, given, target.max_batch_size)
    hashed = fingerprint.of_torch_file(source, model)
    return _build_model(model, target, hashed, lambda path: export_program(program, model, path))


def _write_torch(model: Model, folder: Path, export: Callable[[Path], None]) -> None:
    raw = folder / "exporter"
    raw.mkdir()
    export(raw / MODEL_FILE)
    proto = onnx_file.read_onnx(raw / MODEL_FILE)
    tensors = onnx_file.graph_tensors(proto.graph)
    # The batch first: a graph that lost it also has other sizes than declared.
    check_batch_axis(tensors)
    check_declared(tensors, "input", model.inputs)
    check_declared(tensors, "output", model.outputs)
    onnx_file.forget_sources(proto)
    onnx_file.write_onnx(proto, folder)
    shutil.rmtree(raw)
