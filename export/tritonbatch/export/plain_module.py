"""A torch module that says nothing about its tensors, to a Model: inputs are given, outputs are found by running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tritonbatch.errors import InvalidInput, NotSupported
from tritonbatch.export.samples import made_up_rows
from tritonbatch.export.torch_exporter import essence, module_arguments
from tritonbatch.models.check import check_model
from tritonbatch.models.data_types import triton_type
from tritonbatch.models.given import Given
from tritonbatch.models.model import Model, TensorSpec

if TYPE_CHECKING:
    import torch

# Two sizes of batch and of every free axis: what differs between the runs is free in an output as well.
_RUNS = ((2, 32), (3, 24))


def describe(name: str, module: torch.nn.Module, given: Given) -> Model:
    """A Model called *name* of *module*: inputs as *given*, outputs as the module returns them for made-up rows.

    Outputs are called as given, else by their keys, else ``output`` or ``output_0`` and so on.

    Raises:
        InvalidInput: No inputs are given, the module does not run on them, or it has another number of outputs.
    """
    if not given.inputs:
        raise InvalidInput(
            f"{name!r} does not say what it takes, expected at least one input; give each in the order of forward, "
            "such as --input features:FP32:512"
        )
    model = Model(
        name=name,
        module=module,
        inputs=given.inputs,
        outputs=(TensorSpec("output", "TYPE_FP32", (1,)),),
        sample=lambda batch, rng: made_up_rows(given.inputs, batch, rng),
        purpose="given as a module",
    )
    check_model(model)
    first, second = (_run(model, batch, free) for batch, free in _RUNS)
    names = given.outputs or tuple(first)
    if len(names) != len(first):
        raise InvalidInput(
            f"{name!r} returns {len(first)} tensors, got {len(names)} output names ({', '.join(names)}), expected one "
            "for each; name them all, in order"
        )
    pairs = zip(names, first.values(), second.values(), strict=True)
    return replace(model, outputs=tuple(_spec(output, one, two) for output, one, two in pairs))


def _run(model: Model, batch: int, free_size: int) -> dict[str, torch.Tensor]:
    import torch  # noqa: PLC0415 - the module is here, so torch is loaded

    fixed = tuple(replace(spec, dims=tuple(free_size if d == -1 else d for d in spec.dims)) for spec in model.inputs)
    rows = made_up_rows(fixed, batch, np.random.default_rng(0))
    try:
        with torch.no_grad():
            return named(model.module(*module_arguments(model, rows)))
    except Exception as error:
        shapes = ", ".join(f"{spec.name} {spec.data_type} {[batch, *spec.dims]}" for spec in fixed)
        raise InvalidInput(
            f"{model.name!r} does not run on the inputs given ({shapes}): {essence(error)}; expected the tensors of "
            "its forward, in order; correct them"
        ) from error


def named(result: Any) -> dict[str, torch.Tensor]:
    """The tensors that a module returned, by their keys, or called ``output`` or ``output_0`` and so on."""
    if isinstance(result, Mapping):
        return dict(result)
    tensors = list(result) if isinstance(result, Sequence) else [result]
    return {"output": tensors[0]} if len(tensors) == 1 else {f"output_{i}": each for i, each in enumerate(tensors)}


def _spec(name: str, one: torch.Tensor, two: torch.Tensor) -> TensorSpec:
    data_type = triton_type_of(one.dtype)
    # A wrong batch axis is left to the verification, which names it.
    dims = tuple(a if a == b else -1 for a, b in zip(one.shape[1:], two.shape[1:], strict=True))
    return TensorSpec(name, data_type, dims)


def triton_type_of(dtype: torch.dtype) -> str:
    """Triton's name for torch's *dtype*.

    Raises:
        NotSupported: Triton, or NumPy on the way to it, has no such type.
    """
    import torch  # noqa: PLC0415

    try:
        found = triton_type(torch.empty(0, dtype=dtype).numpy().dtype)
    except TypeError:
        found = None
    if found is None:
        raise NotSupported(
            f"a tensor of the model is {dtype}, which cannot be exchanged between torch and NumPy for verification; "
            "convert it inside the module to float32 or an integer"
        )
    return found
