"""Writes a version beside the one in place and moves it over by rename, so that a killed export harms nothing.

The new files are made in a folder ``.build-…`` inside the model's folder: the same file system, so that a rename is
atomic, and a name that Triton, which takes only numbers as versions, ignores.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tritonbatch.errors import InvalidInput
from tritonbatch.export.onnx_file import MODEL_FILE
from tritonbatch.export.record import RECORD_FILE
from tritonbatch.export.samples import SAMPLES_FILE

_PREFIX = ".build-"


@contextmanager
def staging(model_directory: Path, progress: Callable[[str], None]) -> Iterator[Path]:
    """An empty folder to build in, for the one export at a time that works on *model_directory*.

    Removes the folder at the end, whatever dead exports left, and *model_directory* if nothing came of it.

    Raises:
        InvalidInput: The folder cannot be made or written to.
    """
    try:
        model_directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(model_directory, os.O_RDONLY)
    except OSError as error:
        raise InvalidInput(_cannot_write(model_directory, error)) from error
    try:
        _lock(handle, progress)
        # Under the lock nobody else is building, so these are from runs that were killed.
        for stale in model_directory.glob(f"{_PREFIX}*"):
            shutil.rmtree(stale, ignore_errors=True)
        with _temporary(model_directory) as folder:
            yield folder
    finally:
        os.close(handle)
        with suppress(OSError):
            model_directory.rmdir()


def move_into_place(staged_version: Path, staged_samples: Path, version_directory: Path) -> None:
    """Put the files of *staged_version* in place of those in *version_directory*, and the samples beside the versions.

    Each rename is atomic. Of a version that Triton may be reading, model.onnx changes in one step, and export.json
    comes last, so that an interruption in between leaves a version that the next export recognises as not current.
    """
    staged_samples.replace(version_directory.parent / SAMPLES_FILE)
    if not version_directory.exists():
        staged_version.rename(version_directory)
        return
    names = [path.name for path in staged_version.iterdir()]
    for name in sorted(names, key=lambda name: (name == RECORD_FILE, name == MODEL_FILE)):
        (staged_version / name).replace(version_directory / name)
    # What another tool derived from the old model, such as a cached engine, would be wrong now.
    for path in version_directory.iterdir():
        if path.name not in names and path.is_file():
            path.unlink()


@contextmanager
def _temporary(model_directory: Path) -> Iterator[Path]:
    try:
        folder = tempfile.TemporaryDirectory(prefix=_PREFIX, dir=model_directory)
    except OSError as error:
        raise InvalidInput(_cannot_write(model_directory, error)) from error
    with folder as name:
        yield Path(name)


def _lock(handle: int, progress: Callable[[str], None]) -> None:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        progress("wait for another export of this model")
        fcntl.flock(handle, fcntl.LOCK_EX)
    except OSError:
        # Some network file systems have no locks; then exports of one model should not run at once.
        return


def _cannot_write(folder: Path, error: OSError) -> str:
    return f"cannot write to {str(folder)!r}: {error.strerror}; expected a folder that can be written, so name another"
