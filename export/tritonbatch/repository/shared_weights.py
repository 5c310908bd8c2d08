"""A second model on the weights of a first: each of its versions is a relative symbolic link to the first's.

    ranking_mlp/1/model.onnx
    ranking_mlp_bulk/1 -> ../ranking_mlp/1

A link follows when an export replaces the weights, where a hard link would keep the old file; it costs no disk, and
loads from a read-only mount of the whole repository. An object store has no links: copy the folder there. On the
device each model holds its own copy of the weights all the same.
"""

from __future__ import annotations

import os
from pathlib import Path

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.two_instances import bulk_name


def share_versions(model_directory: Path) -> Path:
    """Make the bulk model's folder beside *model_directory*, with a link for each version; return it.

    Raises:
        InvalidInput: a model with weights of its own has that name.
    """
    bulk = model_directory.with_name(bulk_name(model_directory.name))
    bulk.mkdir(exist_ok=True)
    for path in sorted(bulk.iterdir()):
        if path.name.isdigit() and not path.is_symlink():
            raise InvalidInput(f"{path} has weights of its own: expected a link to those of {model_directory.name}.")
        if path.is_symlink() and not path.exists():
            path.unlink()
    for path in model_directory.iterdir():
        if path.name.isdigit():
            link_version(model_directory, int(path.name))
    return bulk


def link_version(model_directory: Path, version: int) -> None:
    """Let the bulk model, if there is one, have *version* too."""
    bulk = model_directory.with_name(bulk_name(model_directory.name))
    link = bulk / str(version)
    if not bulk.is_dir() or (link.exists() and not link.is_symlink()):
        return
    temporary = bulk / f".link-{version}.{os.getpid()}"
    temporary.unlink(missing_ok=True)
    temporary.symlink_to(Path("..") / model_directory.name / str(version), target_is_directory=True)
    temporary.replace(link)


def unlink_version(model_directory: Path, version: int) -> None:
    """Take *version* from the bulk model, if it has it by link, before it goes away."""
    link = model_directory.with_name(bulk_name(model_directory.name)) / str(version)
    if link.is_symlink():
        link.unlink()
