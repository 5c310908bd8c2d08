"""The models by name: the built-in ones, and any other by the import path of the function that builds it."""

from __future__ import annotations

import difflib
import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any

from tritonbatch.errors import InvalidInput
from tritonbatch.models.check import check_model
from tritonbatch.models.model import Model
from tritonbatch.models.optional import needing

BUILT_IN: Mapping[str, str] = MappingProxyType(
    {
        "convnet": "tritonbatch.models.convnet:build",
        "decoder_step": "tritonbatch.models.decoder_step:build",
        "digits": "tritonbatch.models.digits:build",
        "minilm": "tritonbatch.models.minilm:build",
        "minilm_dynamic": "tritonbatch.models.minilm:build_dynamic",
        "ranking_mlp": "tritonbatch.models.ranking_mlp:build",
    }
)


def load_model(spec: str) -> Model:
    """Build the model that *spec* names: a built-in name, or ``package.module:factory``.

    A factory takes no arguments and returns a Model; modules of the current folder are importable.

    Raises:
        InvalidInput: There is no such model, or what the factory returns is not one.
        NotSupported: A built-in model needs a package that is not installed.
    """
    model = load_object(spec)
    if not isinstance(model, Model):
        raise InvalidInput(
            f"{spec!r} returned a {type(model).__name__}, expected a tritonbatch.models.model.Model; "
            f"{_returned_advice(model)}"
        )
    check_model(model)
    return model


def load_object(spec: str) -> object:
    """What the built-in name or ``package.module:factory`` in *spec* returns, whatever that is.

    Raises:
        InvalidInput, NotSupported: See ``load_model``.
    """
    if spec in BUILT_IN:
        with needing(f"the built-in model {spec!r}", "models"):
            return _factory(BUILT_IN[spec])()
    module_name, factory_name = _split(spec)
    return _call(_user_factory(module_name, factory_name), spec)


def _returned_advice(result: object) -> str:
    # By name: torch stays unloaded when the factory did not load it either.
    if any(base.__name__ == "Module" and base.__module__.startswith("torch.") for base in type(result).__mro__):
        return "say what the module takes, such as --input features:FP32:512, or return a Model"
    return "name a function without arguments that returns one"


def _split(spec: str) -> tuple[str, str]:
    module_name, colon, factory_name = spec.partition(":")
    if colon and module_name and factory_name:
        return module_name, factory_name
    close = difflib.get_close_matches(spec, BUILT_IN, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}?" if close else "name one of these, or a function of your own"
    raise InvalidInput(
        f"there is no model {spec!r}: expected one of {', '.join(sorted(BUILT_IN))}, package.module:factory, "
        f"or a file that ends in .onnx, .pt or .pt2; {hint}"
    )


def _factory(path: str) -> Any:
    module_name, _, factory_name = path.partition(":")
    return getattr(importlib.import_module(module_name), factory_name)


def _user_factory(module_name: str, factory_name: str) -> Any:
    module = _import(module_name)
    factory = getattr(module, factory_name, None)
    if callable(factory):
        return factory
    names = sorted(name for name, value in vars(module).items() if callable(value) and not name.startswith("_"))
    close = difflib.get_close_matches(factory_name, names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else "name the function that builds the model"
    fault = "has no" if factory is None else "cannot call"
    raise InvalidInput(f"module {module_name!r} {fault} {factory_name!r}, expected a function; {hint}")


def _import(module_name: str) -> ModuleType:
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)  # as python -m does, and kept, since a factory may import more of its package later
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is not None and (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise InvalidInput(
                f"there is no module {module_name!r} (no {error.name!r}) in the current folder or among the "
                "installed packages; run in the folder that holds it, or correct the name"
            ) from error
        raise InvalidInput(f"importing {module_name!r} failed: {error}; install that package") from error
    except Exception as error:
        raise InvalidInput(
            f"importing {module_name!r} failed with {type(error).__name__}: {error}; correct that module"
        ) from error


def _call(factory: Any, spec: str) -> object:
    try:
        result: object = factory()
    except Exception as error:
        raise InvalidInput(
            f"{spec!r} raised {type(error).__name__}: {error}; expected a function without arguments that returns "
            "a Model; correct it"
        ) from error
    return result
