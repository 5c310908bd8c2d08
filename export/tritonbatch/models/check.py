"""Whether a model keeps the contract of ``Model``, before an export spends time on it."""

from __future__ import annotations

import re

import numpy as np

from tritonbatch.errors import InvalidInput
from tritonbatch.models import data_types
from tritonbatch.models.model import Arrays, Model, TensorSpec

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def check_model(model: Model) -> None:
    """Check names, shapes and types of *model*, and what its sample function returns for a batch of 2.

    Raises:
        InvalidInput: The first thing that is wrong.
    """
    if not _NAME.fullmatch(model.name):
        raise InvalidInput(
            f"model name {model.name!r} cannot be a folder of the model repository: expected letters, digits, "
            "'_', '-' and '.'; choose such a name"
        )
    _check_module(model)
    for kind, specs in (("input", model.inputs), ("output", model.outputs)):
        _check_specs(model.name, kind, specs)
    _check_sample(model)


def _check_module(model: Model) -> None:
    import torch  # noqa: PLC0415 - a module to check means that torch is loaded already

    if not isinstance(model.module, torch.nn.Module):
        raise InvalidInput(
            f"module of model {model.name!r} is a {type(model.module).__name__}, expected a torch.nn.Module; "
            "wrap the computation in one"
        )


def _check_specs(model_name: str, kind: str, specs: tuple[TensorSpec, ...]) -> None:
    names = [spec.name for spec in specs]
    if not names:
        raise InvalidInput(f"model {model_name!r} has no {kind}s, expected at least one; declare it as a TensorSpec")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise InvalidInput(f"model {model_name!r} has the {kind} name {min(twice)!r} twice; give each its own name")
    for spec in specs:
        _check_spec(f"{kind} {spec.name!r} of model {model_name!r}", spec)


def _check_spec(where: str, spec: TensorSpec) -> None:
    if not spec.name:
        raise InvalidInput(f"{where} has an empty name; give it the name that clients will send")
    if spec.data_type not in data_types.KNOWN:
        raise InvalidInput(
            f"{where} has data type {spec.data_type!r}, expected one of {', '.join(sorted(data_types.KNOWN))}; "
            "use Triton's name of the type"
        )
    for size in spec.dims:
        if isinstance(size, bool) or not isinstance(size, int) or (size < 1 and size != -1):
            raise InvalidInput(
                f"{where} has dims {list(spec.dims)}, expected whole numbers of at least 1, or -1 for any size; "
                "leave the batch axis out and correct the rest"
            )


def _check_sample(model: Model) -> None:
    try:
        arrays = model.sample(2, np.random.default_rng(0))
    except Exception as error:
        raise InvalidInput(
            f"sample(2, rng) of model {model.name!r} raised {type(error).__name__}: {error}; "
            "make it return two rows of every input"
        ) from error
    _check_rows(model, arrays, batch=2)


def _check_rows(model: Model, arrays: Arrays, batch: int) -> None:
    where = f"sample({batch}, rng) of model {model.name!r}"
    names = sorted(spec.name for spec in model.inputs)
    if not isinstance(arrays, dict) or sorted(arrays) != names:
        got = sorted(arrays) if isinstance(arrays, dict) else type(arrays).__name__
        raise InvalidInput(f"{where} returned {got}, expected a dict with the keys {names}; return one array for each")
    for spec in model.inputs:
        array = np.asarray(arrays[spec.name])
        if not (_fits(array.shape, (batch, *spec.dims)) and data_types.holds(array, spec.data_type)):
            raise InvalidInput(
                f"{where} returned {array.dtype} {list(array.shape)} for input {spec.name!r}, expected "
                f"{data_types.numpy_type(spec.data_type)} {[batch, *spec.dims]}; "
                "correct the sample or the TensorSpec"
            )


def _fits(shape: tuple[int, ...], expected: tuple[int, ...]) -> bool:
    return len(shape) == len(expected) and all(e in (-1, s) for s, e in zip(shape, expected, strict=True))
