"""Where things lie in a Triton model repository, and how files get there whole.

<repository>/<model>/config.pbtxt            what a plain tritonserver serves: the dynamic variant
<repository>/<model>/configs/<variant>.pbtxt what `--model-config-name=<variant>` serves
<repository>/<model>/<version>/model.onnx    the weights
<repository>/<model>/samples.npz             inputs that make sense to the model, for load generators
<repository>/<model>/set-aside/<version>/    versions that a rollback took out of service
<repository>/<model>_bulk/<version>          a link to the weights, for the bulk half of two-instances
<repository>/<ensemble>/1/                   empty, since Triton wants a version
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import config_text, read_config
from tritonbatch.repository.shared_weights import share_versions
from tritonbatch.repository.variants import why
from tritonbatch.whole_file import whole_file

DEFAULT_VARIANT = "dynamic"


def write_variants(
    model_directory: Path,
    variants: Mapping[str, ModelConfig],
    *,
    default: str = DEFAULT_VARIANT,
    comments: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write every variant, and the *default* one as config.pbtxt; return the paths whose content changed.

    A config.pbtxt or variant that differs is kept beside the new one as ``<name>.bak``. On top of a file stands its
    entry of *comments*, or else why one would serve that variant.
    """
    texts = {name: config_text(config, (comments or {}).get(name, why(name))) for name, config in variants.items()}
    files = {model_directory / "configs" / f"{name}.pbtxt": text for name, text in texts.items()}
    files[model_directory / "config.pbtxt"] = texts[default]
    return [path for path, text in files.items() if write_text_keeping_copy(path, text)]


def write_bulk(model_directory: Path, config: ModelConfig) -> list[Path]:
    """Write the bulk half of two-instances beside *model_directory*, on its weights; return what changed.

    It has only a config.pbtxt, which every ``--model-config-name`` falls back to.
    """
    folder = share_versions(model_directory)
    path = folder / "config.pbtxt"
    return [path] if write_text_keeping_copy(path, config_text(config, why("two-instances-bulk"))) else []


def write_ensemble(repository: Path, config: ModelConfig) -> Path:
    """Write the ensemble *config* into *repository* with the empty version that Triton wants; return its folder."""
    folder = repository / str(config.name)
    (folder / "1").mkdir(parents=True, exist_ok=True)
    steps = " and ".join(step.model_name for step in config.ensemble_scheduling.step)
    write_text_keeping_copy(folder / "config.pbtxt", config_text(config, f"{config.name}: {steps}, one request."))
    return folder


def write_text_keeping_copy(path: Path, text: str) -> bool:
    """Put *text* at *path* by rename, keeping a differing predecessor as ``<name>.bak``; False when it was equal."""
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return False
        shutil.copy2(path, path.with_name(f"{path.name}.bak"))
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return True


def variant_config(repository: Path, model: str, variant: str) -> ModelConfig:
    """The configuration that *variant* of *model* is served from.

    Raises:
        InvalidInput: there is no such variant file; the message lists those that exist.
    """
    folder = repository / model / "configs"
    path = folder / f"{variant}.pbtxt"
    if not path.is_file():
        present = ", ".join(sorted(file.stem for file in folder.glob("*.pbtxt"))) or "none"
        raise InvalidInput(
            f"No variant {variant!r} of {model} in {folder}: it has {present}; run `tritonbatch export`."
        )
    return read_config(path)


def models_in(repository: Path) -> list[str]:
    """The names of the models in *repository* that have variants and at least one version.

    Raises:
        InvalidInput: the repository does not exist.
    """
    if not repository.is_dir():
        raise InvalidInput(f"No model repository at {repository}: expected a folder; run `tritonbatch export` first.")
    return sorted(
        path.name
        for path in repository.iterdir()
        if (path / "configs").is_dir() and any(path.glob("[0-9]*/model.onnx"))
    )
