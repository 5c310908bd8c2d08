"""Where things lie in a Triton model repository, and how files get there whole.

<repository>/<model>/config.pbtxt            what a plain tritonserver serves: the dynamic variant
<repository>/<model>/configs/<variant>.pbtxt what `--model-config-name=<variant>` serves
<repository>/<model>/<version>/model.onnx    the weights
<repository>/<model>/samples.npz             inputs that make sense to the model, for load generators
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import config_text, read_config
from tritonbatch.repository.variants import WHY

DEFAULT_VARIANT = "dynamic"


def write_variants(model_directory: Path, variants: Mapping[str, ModelConfig]) -> list[Path]:
    """Write every variant, and the default one as config.pbtxt; return the paths whose content changed.

    A config.pbtxt or variant that differs is kept beside the new one as ``<name>.bak``.
    """
    texts = {
        model_directory / "configs" / f"{name}.pbtxt": config_text(config, WHY.get(name, ""))
        for name, config in variants.items()
    }
    default = variants[DEFAULT_VARIANT]
    texts[model_directory / "config.pbtxt"] = config_text(default, WHY[DEFAULT_VARIANT])
    return [path for path, text in texts.items() if write_text_keeping_copy(path, text)]


def write_text_keeping_copy(path: Path, text: str) -> bool:
    """Put *text* at *path* by rename, keeping a differing predecessor as ``<name>.bak``; False when it was equal."""
    if path.exists():
        if path.read_text(encoding="utf-8") == text:
            return False
        shutil.copy2(path, path.with_name(f"{path.name}.bak"))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
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
