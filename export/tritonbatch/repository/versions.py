"""Numeric versions of a model: a new one beside the others, the oldest removed, an earlier one served again.

Triton serves the highest version by default. So the version that should answer is made the highest one in place:
later ones wait in ``<model>/set-aside/``, which Triton passes over with a warning since its name is not a number. That
holds for every variant file and any Triton, changes no configuration, and of all the renames exactly one switches.
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
from tritonbatch.repository.config import read_config
from tritonbatch.repository.shared_weights import link_version, unlink_version

SET_ASIDE = "set-aside"
# Any export clears away what begins so, should one be killed.
_SCRATCH = ".build-"
_SAMPLES = "samples.npz"


def versions(model_directory: Path) -> tuple[int, ...]:
    """The versions that Triton sees, rising; the last is the one that it serves."""
    return _numbers(model_directory)


def set_aside(model_directory: Path) -> tuple[int, ...]:
    """The versions that a rollback put aside, rising."""
    return _numbers(model_directory / SET_ASIDE)


def publish(model_directory: Path, keep: int, build: Callable[[Path, int], bool]) -> int:
    """Make the next version if the model changed, keep the *keep* newest, and return the version that is served.

    *build(folder, version)* brings ``<folder>/<version>`` up to date and says whether it had to; it finds a copy of the
    served version there, to compare with. Nothing is in place until it is whole, and a failure leaves all as it was.

    Raises:
        InvalidInput: *keep* is below 1, or the folder cannot be written; and whatever *build* raises.
    """
    if keep < 1:
        raise InvalidInput(f"The number of versions to keep is {keep}: expected at least 1.")
    with _locked(model_directory):
        present = versions(model_directory)
        number = max((*present, *set_aside(model_directory)), default=0) + 1
        with tempfile.TemporaryDirectory(prefix=_SCRATCH, dir=model_directory) as scratch:
            folder = Path(scratch) / "model"
            _copy_served(model_directory, folder, number)
            if not build(folder, number):
                return present[-1]
            # As in any export: samples first, so that an interruption here leaves a model that is exported again.
            (folder / _SAMPLES).replace(model_directory / _SAMPLES)
            (folder / str(number)).rename(model_directory / str(number))
        link_version(model_directory, number)
        _prune(model_directory, keep)
        return number


def rollback(model_directory: Path, to: int | None = None) -> int:
    """Make version *to*, by default the one before the served one, the one that is served; return its number.

    It goes back and forth: a version that was set aside is served again by naming it. A running server changes when
    it loads the model again.

    Raises:
        InvalidInput: there is no such version, or a configuration asks for versions by number.
    """
    present, aside = versions(model_directory), set_aside(model_directory)
    target = _target(model_directory, present, aside, to)
    with _locked(model_directory):
        _check_policies(model_directory, target)
        # In this order what is served changes once, by one rename: with the target when it is newer than the served
        # version, with the last one set aside when it is older.
        for version in sorted((v for v in aside if v <= target), reverse=True):
            (model_directory / SET_ASIDE / str(version)).rename(model_directory / str(version))
            link_version(model_directory, version)
        for version in (v for v in present if v > target):
            (model_directory / SET_ASIDE).mkdir(exist_ok=True)
            unlink_version(model_directory, version)
            (model_directory / str(version)).rename(model_directory / SET_ASIDE / str(version))
        with suppress(OSError):
            (model_directory / SET_ASIDE).rmdir()
    return target


def check_only_version_1(model_directory: Path) -> None:
    """Refuse to replace version 1 where a later one is served, since nobody would see the change."""
    present = versions(model_directory)
    if present and present[-1] > 1:
        raise InvalidInput(
            f"{model_directory.name} has {_listed(present, ())}: expected only version 1 to replace; "
            "give --keep N to add a version and keep the N newest."
        )


def _target(model_directory: Path, present: tuple[int, ...], aside: tuple[int, ...], to: int | None) -> int:
    if not present:
        raise InvalidInput(f"No versions in {model_directory}: expected a model; run `tritonbatch export` first.")
    if to is None:
        if len(present) < 2:
            raise InvalidInput(
                f"{model_directory.name} has {_listed(present, aside)}: expected one before version {present[-1]}; "
                "`tritonbatch export --keep N` keeps earlier ones."
            )
        return present[-2]
    if to not in (*present, *aside):
        raise InvalidInput(f"{model_directory.name} has no version {to}: it has {_listed(present, aside)}; name one.")
    return to


def _listed(present: tuple[int, ...], aside: tuple[int, ...]) -> str:
    shown = [f"{v}" + (" (served)" if v == present[-1] else "") for v in present] + [f"{v} (set aside)" for v in aside]
    return f"version{'s' if len(shown) > 1 else ''} {', '.join(shown)}"


def _check_policies(model_directory: Path, target: int) -> None:
    for path in (model_directory / "config.pbtxt", *sorted(model_directory.glob("configs/*.pbtxt"))):
        asked = list(read_config(path).version_policy.specific.versions) if path.exists() else []
        if asked and max(asked) != target:
            raise InvalidInput(
                f"{path} asks for the versions {asked} by number, so moving others changes nothing: expected "
                "version_policy latest or all; edit that file instead."
            )


def _copy_served(model_directory: Path, folder: Path, number: int) -> None:
    folder.mkdir()
    if present := versions(model_directory):
        shutil.copytree(model_directory / str(present[-1]), folder / str(number), copy_function=_link_or_copy)
    if (model_directory / _SAMPLES).exists():
        _link_or_copy(model_directory / _SAMPLES, folder / _SAMPLES)


def _link_or_copy(source: Path | str, target: Path | str) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)


def _prune(model_directory: Path, keep: int) -> None:
    """Remove the oldest beyond *keep*; those set aside were found wanting, so they go first."""
    present, aside = versions(model_directory), set_aside(model_directory)
    surplus = max(len(present) + len(aside) - keep, 0)
    doomed = [model_directory / SET_ASIDE / str(v) for v in aside] + [model_directory / str(v) for v in present[:-1]]
    for path in doomed[:surplus]:
        if path.parent == model_directory:
            unlink_version(model_directory, int(path.name))
        # By rename first: a version disappears at once, not file by file.
        gone = path.rename(model_directory / f"{_SCRATCH}removed-{path.name}")
        shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        (model_directory / SET_ASIDE).rmdir()


def _numbers(folder: Path) -> tuple[int, ...]:
    names = [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit() and not name.startswith("0")))


@contextmanager
def _locked(model_directory: Path) -> Iterator[None]:
    """One at a time on this model; the same lock that an export of version 1 takes."""
    try:
        model_directory.mkdir(parents=True, exist_ok=True)
        handle = os.open(model_directory, os.O_RDONLY)
    except OSError as error:
        raise InvalidInput(f"Cannot write to {model_directory}: {error.strerror}; expected a folder.") from error
    try:
        with suppress(OSError):  # some network file systems have no locks
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    except OSError as error:
        raise InvalidInput(f"Cannot write to {model_directory}: {error}; expected a folder to write to.") from error
    finally:
        os.close(handle)
        with suppress(OSError):
            model_directory.rmdir()
