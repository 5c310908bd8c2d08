"""One export: what it is made from, where it goes, and the steps in between, none of which shows before the last.

Knows nothing about where a model came from; ``build`` makes the plans.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritonbatch.errors import InvalidInput
from tritonbatch.export.onnx_file import MODEL_FILE
from tritonbatch.export.record import Built, Origin, read_current, write_record
from tritonbatch.export.samples import SAMPLE_ROWS, SAMPLES_FILE, write_samples
from tritonbatch.export.staging import move_into_place, staging
from tritonbatch.export.verify import Sample, verify
from tritonbatch.models.model import Model, TensorSpec

Progress = Callable[[str], None]

_SAMPLES_SEED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where a version goes and what it has to bear; *recipe* is known for built-in models only."""

    model_directory: Path
    version_directory: Path
    max_batch_size: int
    progress: Progress
    recipe: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a version is made from; *write(folder)* makes its model.onnx."""

    origin: Origin
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sample: Sample
    write: Callable[[Path], None]
    model: Model | None = None


def target_of(
    model_directory: Path, version: int, max_batch_size: int, progress: Progress | None, recipe: str = ""
) -> Target:
    """The target for *version*; see ``Target``.

    Raises:
        InvalidInput: A number is below 1.
    """
    for name, value in (("max_batch_size", max_batch_size), ("version", version)):
        if value < 1:
            raise InvalidInput(f"{name} is {value}, expected a whole number of at least 1; give one")
    return Target(
        model_directory=model_directory,
        version_directory=model_directory / str(version),
        max_batch_size=max_batch_size,
        progress=progress or (lambda _step: None),
        recipe=recipe,
    )


def current(target: Target, fingerprint_: str) -> Built | None:
    """The version in place, if it was made from *fingerprint_* and verified far enough; None otherwise."""
    if not (target.model_directory / SAMPLES_FILE).exists():
        return None
    # A recipe also covers what a fingerprint does not, such as the sentences that samples are drawn from.
    wanted = {"recipe": target.recipe} if target.recipe else {"fingerprint": fingerprint_}
    return read_current(target.version_directory, target.max_batch_size, wanted)


def execute(plan: Plan, target: Target) -> Built:
    """Write, verify and move into place what *plan* says, or return what is in place if that is current.

    Raises:
        InvalidInput, NotSupported, ExportRejected: What writing and verifying raise; nothing in place has changed.
    """
    start = time.perf_counter()
    with staging(target.model_directory, target.progress) as folder:
        in_place = current(target, plan.origin.fingerprint)
        if in_place is not None:
            return in_place
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
