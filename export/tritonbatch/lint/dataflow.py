"""Rules about how tensors run through an ensemble: each written once, before it is read, and of one type and shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType

from tritonbatch.lint.ensembles import known_steps, steps
from tritonbatch.lint.finding import Problem, error
from tritonbatch.lint.subject import Subject
from tritonbatch.lint.tensors import Tensor, shape_text


def _sources(subject: Subject) -> set[str]:
    """The tensors that can be there: the ensemble's inputs, and what steps write from tensors that are there."""
    there = {tensor.name for tensor in subject.config.input}
    while True:
        ready = [step for _, step in steps(subject) if set(step.input_map.values()) <= there]
        new = {name for step in ready for name in step.output_map.values()} - there
        if not new:
            return there
        there |= new


def _written_twice(subject: Subject) -> Iterator[Problem]:
    seen: set[str] = set()
    for path, step in steps(subject):
        for key in sorted(step.output_map):
            name = step.output_map[key]
            if name in seen:
                message = f'"{name}" is written twice, expected one writer for each tensor'
                yield Problem(f'{path}.output_map["{key}"]', message, "give it a name of its own")
            seen.add(name)


def _never_written(subject: Subject) -> Iterator[Problem]:
    there = _sources(subject)
    for path, step in steps(subject):
        for key in sorted(step.input_map):
            name = step.input_map[key]
            if name not in there:
                message = f'"{name}" is never written, expected an input of the ensemble or an output of a step before'
                yield Problem(f'{path}.input_map["{key}"]', message, "name a tensor that is written")


def _ends_unconnected(subject: Subject) -> Iterator[Problem]:
    if not subject.config.ensemble_scheduling.step:
        return
    read = {name for _, step in steps(subject) for name in step.input_map.values()}
    written = {name for _, step in steps(subject) for name in step.output_map.values()}
    for index, tensor in enumerate(subject.config.input):
        if tensor.name not in read | written:
            message = f'input "{tensor.name}" is used by no step, expected one'
            yield Problem(f"input[{index}].name", message, "map it in a step, or remove it")
    for index, output in enumerate(subject.config.output):
        if output.name not in written:
            message = f'output "{output.name}" is written by no step, expected one'
            yield Problem(f"output[{index}].name", message, "map it in a step's output_map, or remove it")


def _unused(subject: Subject) -> Iterator[Problem]:
    read = {name for _, step in steps(subject) for name in step.input_map.values()}
    read |= {tensor.name for tensor in subject.config.output}
    for path, step in steps(subject):
        for key in sorted(step.output_map):
            if (name := step.output_map[key]) not in read:
                message = f'"{name}" is used by no step and is no output, expected every tensor used'
                yield Problem(f'{path}.output_map["{key}"]', message, f'remove the entry for "{key}", or use "{name}"')


@dataclass(frozen=True, slots=True)
class _Use:
    """One place where a tensor of the ensemble is declared, with its full shape there."""

    path: str
    owner: str
    data_type: int
    dims: tuple[int, ...]
    full: tuple[int, ...]


def _use(path: str, owner: str, tensor: Tensor, *, batching: bool, reshaped: bool) -> _Use:
    shape = tensor.reshape.shape if reshaped and tensor.HasField("reshape") else tensor.dims
    dims = tuple(shape)
    return _Use(path, owner, tensor.data_type, dims, (-1, *dims) if batching else dims)


def _uses(subject: Subject) -> Iterator[tuple[str, _Use]]:
    for kind in ("input", "output"):
        for index, tensor in enumerate(getattr(subject.config, kind)):
            path = f"{kind}[{index}]"
            yield tensor.name, _use(path, subject.model, tensor, batching=subject.batching, reshaped=True)
    for path, step, config in known_steps(subject):
        for kind, mapped in (("input", step.input_map), ("output", step.output_map)):
            for tensor in getattr(config, kind):
                if tensor.name in mapped:
                    where = f'{path}.{kind}_map["{tensor.name}"]'
                    use = _use(where, step.model_name, tensor, batching=config.max_batch_size > 0, reshaped=False)
                    yield mapped[tensor.name], use


def _clashes(subject: Subject) -> Iterator[tuple[str, _Use, _Use]]:
    first: dict[str, _Use] = {}
    for name, use in _uses(subject) if subject.config.HasField("ensemble_scheduling") else ():
        yield name, first.setdefault(name, use), use


def _types_differ(subject: Subject) -> Iterator[Problem]:
    for name, one, other in _clashes(subject):
        if one.data_type != other.data_type:
            types = DataType.Name(one.data_type), DataType.Name(other.data_type)
            message = f'"{name}" is {types[0]} in {one.owner} and {types[1]} in {other.owner}, expected one type'
            yield Problem(other.path, message, f"data_type: {types[0]} in {other.owner}, or a step that casts")


def _shapes_differ(subject: Subject) -> Iterator[Problem]:
    for name, one, other in _clashes(subject):
        if not _compatible(one.dims, other.dims) and not _compatible(one.full, other.full):
            shapes = shape_text(one.full), shape_text(other.full)
            message = f'"{name}" is {shapes[0]} in {one.owner} and {shapes[1]} in {other.owner}, expected one shape'
            yield Problem(
                other.path, message, f"dims: {shape_text(one.dims)} in {other.owner}, or a step that reshapes"
            )


def _compatible(one: tuple[int, ...], other: tuple[int, ...]) -> bool:
    return len(one) == len(other) and all(a == b or -1 in (a, b) for a, b in zip(one, other, strict=True))


RULES = (
    error("ensemble-tensor-twice", "Two steps write the same tensor.", _written_twice),
    error("ensemble-tensor-missing", "A step reads a tensor that is never written.", _never_written),
    error("ensemble-end-unconnected", "An input or output of the ensemble is in no step.", _ends_unconnected),
    error("ensemble-tensor-unused", "A step writes a tensor that nobody uses.", _unused),
    error("ensemble-types-differ", "A tensor has different types in two models.", _types_differ),
    error("ensemble-shapes-differ", "A tensor has different shapes in two models.", _shapes_differ),
)
