"""A model to a verified version folder of the model repository, skipped when the one in place is current.

<model_directory>/<version>/model.onnx     what Triton serves
<model_directory>/<version>/export.json    what it was made from, and how it was verified
<model_directory>/samples.npz              64 rows of every input, for the load generator
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tritonbatch.errors import InvalidInput
from tritonbatch.export import fingerprint, onnx_file
from tritonbatch.export.batch_axis import check_batch_axis, check_declared, specs_of
from tritonbatch.export.onnx_file import MODEL_FILE
from tritonbatch.export.record import Built, Origin, read_current, write_record
from tritonbatch.export.samples import SAMPLE_ROWS, SAMPLES_FILE, made_up_rows, write_samples
from tritonbatch.export.staging import move_into_place, staging
from tritonbatch.export.torch_exporter import OPSET, export_torch
from tritonbatch.export.verify import Sample, verify
from tritonbatch.models.catalog import BUILT_IN, load_model
from tritonbatch.models.check import check_model
from tritonbatch.models.model import Model, TensorSpec

Progress = Callable[[str], None]

_SAMPLES_SEED = 3


def build_spec(
    spec: str, model_directory: Path, *, max_batch_size: int, version: int = 1, progress: Progress | None = None
) -> Built:
    """Export whatever *spec* names: a built-in model, ``package.module:factory``, or an .onnx file.

    Raises:
        InvalidInput, NotSupported, ExportRejected: See ``build_named`` and ``build_from_file``.
    """
    if spec.endswith(".onnx"):
        source = Path(spec)
        return build_from_file(
            source, model_directory, max_batch_size=max_batch_size, version=version, progress=progress
        )
    return build_named(spec, model_directory, max_batch_size=max_batch_size, version=version, progress=progress)


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
    target = _target(model_directory, version, max_batch_size, progress, recipe)
    built = _current(target, "") if recipe else None
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
    target = _target(model_directory, version, max_batch_size, progress)
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
    target = _target(model_directory, version, max_batch_size, progress)
    target.progress("check the file")
    proto = onnx_file.read_onnx(source)
    tensors = onnx_file.graph_tensors(proto.graph)
    check_batch_axis(tensors)
    inputs = specs_of(tensors, "input")
    plan = _Plan(
        origin=Origin(source.name, fingerprint.of_file(source), "", onnx_file.opset(proto)),
        inputs=inputs,
        outputs=specs_of(tensors, "output"),
        sample=sample or (lambda batch, rng: made_up_rows(inputs, batch, rng)),
        write=lambda folder: onnx_file.write_onnx(proto, folder),
    )
    return replace(_build(plan, target), seconds=time.perf_counter() - start)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """Where a version goes and what it has to bear; *recipe* is known for built-in models only."""

    model_directory: Path
    version_directory: Path
    max_batch_size: int
    progress: Progress
    recipe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What a version is made from; *write(folder)* makes its model.onnx."""

    origin: Origin
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sample: Sample
    write: Callable[[Path], None]
    model: Model | None = None


def _target(
    model_directory: Path, version: int, max_batch_size: int, progress: Progress | None, recipe: str = ""
) -> _Target:
    for name, value in (("max_batch_size", max_batch_size), ("version", version)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}, expected a whole number of at least 1; give one")
    return _Target(
        model_directory=model_directory,
        version_directory=model_directory / str(version),
        max_batch_size=max_batch_size,
        progress=progress or (lambda _step: None),
        recipe=recipe,
    )


def _current(target: _Target, fingerprint_: str) -> Built | None:
    if not (target.model_directory / SAMPLES_FILE).exists():
        return None
    # A recipe also covers what a fingerprint does not, such as the sentences that samples are drawn from.
    wanted = {"recipe": target.recipe} if target.recipe else {"fingerprint": fingerprint_}
    return read_current(target.version_directory, target.max_batch_size, wanted)


def _build_model(model: Model, target: _Target) -> Built:
    target.progress("compute the fingerprint")
    plan = _Plan(
        origin=Origin(model.name, fingerprint.of_model(model), target.recipe, OPSET),
        inputs=model.inputs,
        outputs=model.outputs,
        sample=model.sample,
        write=lambda folder: _write_torch(model, folder),
        model=model,
    )
    return _build(plan, target)


def _write_torch(model: Model, folder: Path) -> None:
    raw = folder / "exporter"
    raw.mkdir()
    export_torch(model, raw / MODEL_FILE)
    proto = onnx_file.read_onnx(raw / MODEL_FILE)
    tensors = onnx_file.graph_tensors(proto.graph)
    # The batch first: a graph that lost it also has other sizes than declared.
    check_batch_axis(tensors)
    check_declared(tensors, "input", model.inputs)
    check_declared(tensors, "output", model.outputs)
    onnx_file.forget_sources(proto)
    onnx_file.write_onnx(proto, folder)
    shutil.rmtree(raw)


def _build(plan: _Plan, target: _Target) -> Built:
    start = time.perf_counter()
    with staging(target.model_directory, target.progress) as folder:
        current = _current(target, plan.origin.fingerprint)
        if current is not None:
            return current
        # A folder of its own, with the permissions that the server's user needs; the temporary one is private.
        staged = folder / "version"
        staged.mkdir()
        target.progress("write ONNX")
        plan.write(staged)
        target.progress("verify")
        verification = verify(staged / MODEL_FILE, plan.sample, target.max_batch_size, plan.model)
        built = Built(
            path=target.version_directory / MODEL_FILE,
            inputs=plan.inputs,
            outputs=plan.outputs,
            verification=verification,
            rebuilt=True,
            seconds=time.perf_counter() - start,
        )
        write_record(staged, plan.origin, built)
        write_samples(plan.sample(SAMPLE_ROWS, np.random.default_rng(_SAMPLES_SEED)), folder / SAMPLES_FILE)
        target.progress("move into place")
        move_into_place(staged, folder / SAMPLES_FILE, target.version_directory)
        return built
