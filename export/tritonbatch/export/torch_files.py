"""Models that torch saved with their code: TorchScript (.pt) and ExportedProgram (.pt2) files, read into a Model."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tritonbatch.errors import ExportRejected, InvalidInput
from tritonbatch.export.plain_module import describe, triton_type_of
from tritonbatch.export.torch_exporter import essence
from tritonbatch.models.given import Given
from tritonbatch.models.model import Model, TensorSpec
from tritonbatch.models.optional import needing

if TYPE_CHECKING:
    import torch
    from torch.export import ExportedProgram


def read_torchscript(path: Path, given: Given) -> Model:
    """The TorchScript file *path*, whose inputs are *given*, since it does not record them.

    Raises:
        InvalidInput: It is no such file, or it does not run on the inputs.
        NotSupported: torch is not installed.
    """
    _check_exists(path)
    with needing("a TorchScript file", "models"):
        import torch  # noqa: PLC0415
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # saved files outlive the way that they were made
            module = torch.jit.load(str(path), map_location="cpu").eval()  # type: ignore[no-untyped-call]
    except (RuntimeError, ValueError) as error:
        raise InvalidInput(
            f"{str(path)!r} is not a TorchScript file: expected one that torch.jit.save wrote (a state_dict or a "
            "pickled module lacks the code); save torch.jit.trace(module, example), or name the function that builds "
            "the module as package.module:factory"
        ) from error
    return describe(path.stem, module, given)


def read_exported_program(path: Path, given: Given, max_batch_size: int) -> tuple[Model, ExportedProgram]:
    """The ExportedProgram file *path* as a Model, and the program itself; its inputs are in the program.

    Raises:
        InvalidInput: It is no such file, its inputs are nested, or inputs are given as well.
        ExportRejected: The batch is fixed in it, or cannot be as large as *max_batch_size*.
        NotSupported: torch is not installed.
    """
    _check_exists(path)
    if given.inputs:
        raise InvalidInput(f"{path.name} has its inputs in it, got --input as well; leave that out")
    with needing("an ExportedProgram file", "models"):
        import torch  # noqa: PLC0415
    try:
        program = torch.export.load(path)
    except Exception as error:
        raise InvalidInput(
            f"{str(path)!r} is not an ExportedProgram file: {essence(error)}; expected one that torch.export.save "
            "wrote with this version of torch or an older one; save the program again"
        ) from error
    inputs = _inputs(path, program, max_batch_size)
    return describe(path.stem, _positional(program), Given(inputs, given.outputs)), program


def _check_exists(path: Path) -> None:
    if not path.is_file():
        raise InvalidInput(f"there is no file {str(path)!r}, expected one that torch saved; correct the path")


def _inputs(path: Path, program: ExportedProgram, max_batch_size: int) -> tuple[TensorSpec, ...]:
    _check_flat(path, program)
    values = {node.name: node.meta["val"] for node in program.graph.nodes if node.op == "placeholder"}
    found = []
    for name in (str(each) for each in program.graph_signature.user_inputs):
        shape = values[name].shape
        _check_batch(path, program, name, shape, max_batch_size)
        dims = tuple(size if isinstance(size, int) else -1 for size in shape[1:])
        found.append(TensorSpec(name, triton_type_of(values[name].dtype), dims))
    return tuple(found)


def _check_flat(path: Path, program: ExportedProgram) -> None:
    spec = program.call_spec.in_spec
    if spec is not None and spec.num_leaves != sum(group.num_children for group in spec.children()):
        raise InvalidInput(
            f"the program {path.name} takes lists or dicts of tensors, expected one tensor per argument; wrap the "
            "module in one whose forward takes them so, and export it again"
        )


def _positional(program: ExportedProgram) -> torch.nn.Module:
    """The program as a module that takes its tensors in order, those that it takes by keyword last."""
    import torch  # noqa: PLC0415

    inner: Any = program.module()
    spec = program.call_spec.in_spec
    keywords = list(spec.children()[1].context or ()) if spec is not None else []

    class Positional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.program = inner

        def forward(self, *tensors: torch.Tensor) -> Any:
            split = len(tensors) - len(keywords)
            return self.program(*tensors[:split], **dict(zip(keywords, tensors[split:], strict=True)))

    # A program has no mode to switch, and refuses train() and eval().
    module = Positional()
    module.training = False
    return module


def _check_batch(path: Path, program: ExportedProgram, name: str, shape: Any, max_batch_size: int) -> None:
    again = (
        "export it again with dynamic_shapes that give axis 0 of every input one torch.export.Dim('batch'), and an "
        "example of 2 rows or more"
    )
    sizes = ", ".join(str(size) for size in shape)
    if not shape or isinstance(shape[0], int):
        raise ExportRejected(
            f"input {name!r} [{sizes}] of {path.name} is specialised to the batch of its example, expected a symbolic "
            f"axis 0; {again}"
        )
    # The lower end says little: 2 is only what the exporter assumed, and the verification runs one row.
    allowed = program.range_constraints.get(shape[0].node.expr)
    if allowed is not None and allowed.upper < max_batch_size:
        raise ExportRejected(
            f"input {name!r} [{sizes}] of {path.name} allows batches up to {allowed.upper}, expected up to "
            f"{max_batch_size} (max_batch_size); lower that, or {again} without a maximum"
        )
