"""Rules that hold the configuration against the ONNX graph, as the onnxruntime backend does when it loads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput

from tritonbatch.export.onnx_file import GraphTensor
from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject
from tritonbatch.lint.tensors import Tensor, shape_text, tensors

BATCH_SYMBOLS = frozenset({"batch", "batch_size", "batchsize", "bs", "n", "b", "num_batch", "dynamic_batch"})
TRANSPOSE = "export a wrapper that moves the batch to the first axis, or max_batch_size: 0 with the full shape"
EXPORT_AGAIN = "export again with a dynamic batch axis on every tensor, or max_batch_size: 0 with the full shape"


@dataclass(frozen=True, slots=True)
class Pair:
    """A tensor of the configuration with its counterpart in the graph."""

    path: str
    declared: Tensor
    real: GraphTensor
    scattered: bool = False

    @property
    def field(self) -> str:
        """Which field says what the model sees."""
        return "reshape.shape" if self.declared.HasField("reshape") else "dims"

    @property
    def dims(self) -> list[int]:
        """The shape that the model sees, without an implicit batch axis."""
        return list(self.declared.reshape.shape if self.declared.HasField("reshape") else self.declared.dims)

    @property
    def axes(self) -> list[int]:
        """The graph's axes, -1 for any free one."""
        return [axis if isinstance(axis, int) else -1 for axis in self.real.axes]

    @property
    def shapeless(self) -> bool:
        """Whether requests are laid end to end or taken apart by length, so that dims say nothing about the graph."""
        return self.scattered or self.ragged

    @property
    def ragged(self) -> bool:
        """Whether requests of different length are laid end to end."""
        return isinstance(self.declared, ModelInput) and self.declared.allow_ragged_batch


def pairs(subject: Subject, config: ModelConfig | None = None) -> Iterator[Pair]:
    """The tensors that the configuration and the graph both have."""
    if subject.graph is None or subject.graph.problem:
        return
    scattered = {name for entry in subject.config.batch_output for name in entry.target_name}
    for path, tensor in tensors(config or subject.config):
        real = subject.graph.of_kind(path.partition("[")[0]).get(tensor.name)
        if real is not None:
            yield Pair(path, tensor, real, path.startswith("output") and tensor.name in scattered)


def _unknown(subject: Subject, kind: str) -> Iterator[Problem]:
    if subject.graph is None or subject.graph.problem:
        return
    names = set(subject.graph.of_kind(kind)) | (subject.graph.defaults if kind == "input" else set())
    for path, tensor in tensors(subject.config):
        if path.startswith(kind) and tensor.name and tensor.name not in names:
            there = ", ".join(f'"{name}"' for name in sorted(names))
            message = f'the graph has no {kind} "{tensor.name}", expected one of {there}'
            yield Problem(f"{path}.name", message, f"name: {there}" if len(names) == 1 else "name one of the graph's")


def _input_unknown(subject: Subject) -> Iterator[Problem]:
    yield from _unknown(subject, "input")


def _output_unknown(subject: Subject) -> Iterator[Problem]:
    yield from _unknown(subject, "output")


def _only_candidate(subject: Subject, config: ModelConfig) -> None:
    """Rename where the graph has exactly one tensor of the kind, and so has the configuration."""
    if subject.graph is None:
        return
    for kind, group in (("input", config.input), ("output", config.output)):
        names = list(subject.graph.of_kind(kind))
        if len(names) == 1 and len(group) == 1:
            _rename_references(config, kind, group[0].name, names[0])
            group[0].name = names[0]


def _rename_references(config: ModelConfig, kind: str, old: str, new: str) -> None:
    """Let what points to the tensor *old* point to *new*."""
    field = "source_input" if kind == "input" else "target_name"
    for entry in (*config.batch_input, *config.batch_output) if kind == "input" else config.batch_output:
        names = getattr(entry, field)
        names[:] = [new if name == old else name for name in names]
    for sample in config.model_warmup if kind == "input" else ():
        if old in sample.inputs and old != new:
            sample.inputs[new].CopyFrom(sample.inputs[old])
            del sample.inputs[old]


def _given_otherwise(subject: Subject) -> set[str]:
    """Inputs that Triton itself fills: batch inputs, and the controls and states of sequences."""
    sequences = subject.config.sequence_batching
    names = {name for entry in subject.config.batch_input for name in entry.target_name}
    return names | {each.name for each in sequences.control_input} | {each.input_name for each in sequences.state}


def _input_missing(subject: Subject) -> Iterator[Problem]:
    if subject.graph is None or subject.graph.problem or not subject.config.input:
        return
    declared = {tensor.name for tensor in subject.config.input} | _given_otherwise(subject)
    for name, real in subject.graph.of_kind("input").items():
        if name not in declared and name not in subject.graph.defaults:
            fix = f'input {{ name: "{name}" data_type: {real.data_type} dims: … }}'
            yield Problem("input", f"the graph's {real} is not listed, expected every input", fix)


def _output_unlisted(subject: Subject) -> Iterator[Problem]:
    if subject.graph is None or subject.graph.problem or not subject.config.output:
        return
    declared = {tensor.name for tensor in subject.config.output}
    declared |= {state.output_name for state in subject.config.sequence_batching.state}
    for name, real in subject.graph.of_kind("output").items():
        if name not in declared:
            fix = f'output {{ name: "{name}" data_type: {real.data_type} dims: … }} if callers want it'
            yield Problem("output", f"the graph's {real} is not listed, so nobody can ask for it", fix)


def _type(subject: Subject) -> Iterator[Problem]:
    for pair in pairs(subject):
        got = pair.declared.data_type
        if got and got in DataType.values() and DataType.Name(got) != pair.real.data_type:
            message = f'"{pair.real.name}" is {DataType.Name(got)}, expected {pair.real.data_type} as in the graph'
            yield Problem(f"{pair.path}.data_type", message, f"data_type: {pair.real.data_type}")


def _set_types(subject: Subject, config: ModelConfig) -> None:
    for pair in pairs(subject, config):
        pair.declared.data_type = DataType.Value(pair.real.data_type)


def _batch_fixed(subject: Subject) -> Iterator[Problem]:
    for pair in pairs(subject):
        if subject.batching and not pair.shapeless and (not pair.axes or pair.axes[0] != -1):
            first = pair.axes[0] if pair.axes else "missing"
            message = f"the first axis of {pair.real} is {first}, expected a free one, for the batch of up to "
            yield Problem(f"{pair.path}.dims", f"{message}{subject.config.max_batch_size}", EXPORT_AGAIN)


def _is_batch(axis: int | str | None) -> bool:
    return isinstance(axis, str) and axis.lower() in BATCH_SYMBOLS


def _batch_elsewhere(subject: Subject) -> Iterator[Problem]:
    for pair in pairs(subject):
        axes = pair.real.axes
        others = [index for index, axis in enumerate(axes) if index and _is_batch(axis)]
        if subject.batching and others and not _is_batch(axes[0]) and axes[0] != axes[others[0]]:
            message = f'{pair.real} has the batch "{axes[others[0]]}" on axis {others[0]}, expected it on axis 0'
            yield Problem(f"{pair.path}.dims", message, TRANSPOSE)


def includes_batch(pair: Pair, *, batching: bool) -> bool:
    """Whether the dims spell out the batch axis that max_batch_size already stands for."""
    axes = pair.axes
    leads = bool(axes) and axes[0] == -1 and len(pair.dims) == len(axes)
    return batching and not pair.shapeless and leads and _agree(pair.dims[1:], axes[1:])


def _agree(dims: Sequence[int], axes: Sequence[int]) -> bool:
    return len(dims) == len(axes) and all(want in (-1, have) for have, want in zip(dims, axes, strict=True))


def _dims_with_batch(subject: Subject) -> Iterator[Problem]:
    for pair in pairs(subject):
        if includes_batch(pair, batching=subject.batching):
            wanted = shape_text(pair.dims[1:])
            message = f'dims {shape_text(pair.dims)} of "{pair.real.name}" include the batch, expected {wanted}'
            fix = f"dims: {wanted}" if len(pair.dims) > 1 else "dims: [1] reshape { shape: [ ] }"
            yield Problem(f"{pair.path}.{pair.field}", message, fix)


def _strip_batch(subject: Subject, config: ModelConfig) -> None:
    for pair in pairs(subject, config):
        if not includes_batch(pair, batching=subject.batching) or pair.field != "dims":
            continue
        if len(pair.dims) == 1:  # dims cannot be empty, but the model can see an empty shape
            pair.declared.dims[:] = [1]
            pair.declared.reshape.SetInParent()
        else:
            pair.declared.dims[:] = pair.dims[1:]


def _expected(pair: Pair, *, batching: bool) -> list[int] | None:
    """What dims must look like for the graph; None where another rule speaks, or there is nothing to compare."""
    if pair.shapeless or includes_batch(pair, batching=batching):
        return None
    if not pair.axes:
        return None if batching else [1] * len(pair.dims)
    return pair.axes[1:] if batching else pair.axes


def _rank(subject: Subject) -> Iterator[Problem]:
    for pair in pairs(subject):
        wanted = _expected(pair, batching=subject.batching)
        if wanted is not None and len(wanted) != len(pair.dims):
            message = f'"{pair.real.name}" has {shape_text(pair.dims)} for {pair.real}, expected {len(wanted)} dims'
            yield Problem(f"{pair.path}.{pair.field}", message, f"dims: {shape_text(wanted)}")


def _differing(subject: Subject) -> Iterator[tuple[Pair, int, int, int, list[int]]]:
    """The pair, index, dimension, the graph's, and all of the graph's, wherever the backend would see a difference."""
    for pair in pairs(subject):
        wanted = _expected(pair, batching=subject.batching)
        if wanted is None or len(wanted) != len(pair.dims):
            continue
        for index, (have, want) in enumerate(zip(pair.dims, wanted, strict=True)):
            if have != want and not (want == -1 and pair.real.kind == "input"):
                yield pair, index, have, want, wanted


def _dimension(subject: Subject) -> Iterator[Problem]:
    for pair, index, have, want, wanted in _differing(subject):
        if have != -1 or pair.real.kind == "input":
            message = f'dimension {index} of "{pair.real.name}" is {have}, expected {want} as in {pair.real}'
            yield Problem(f"{pair.path}.{pair.field}[{index}]", message, f"dims: {shape_text(wanted)}")


def _output_free(subject: Subject) -> Iterator[Problem]:
    for pair, index, have, want, wanted in _differing(subject):
        if have == -1 and pair.real.kind == "output":
            message = f'dimension {index} of output "{pair.real.name}" is -1, expected the fixed {want} of {pair.real}'
            yield Problem(f"{pair.path}.{pair.field}[{index}]", message, f"dims: {shape_text(wanted)}")


def _set_dims(subject: Subject, config: ModelConfig) -> None:
    for pair in pairs(subject, config):
        wanted = _expected(pair, batching=subject.batching)
        if wanted is None or len(wanted) != len(pair.dims) or pair.field != "dims":
            continue
        for index, (have, want) in enumerate(zip(pair.dims, wanted, strict=True)):
            pair.declared.dims[index] = have if want == -1 and pair.real.kind == "input" else want


def _ragged(subject: Subject) -> Iterator[Problem]:
    for pair in pairs(subject):
        if pair.ragged and pair.axes != [-1]:
            message = f"allow_ragged_batch for {pair.real}, expected a graph input of one free axis"
            yield Problem(f"{pair.path}.allow_ragged_batch", message, "remove allow_ragged_batch, and pad the requests")


def _optional(subject: Subject) -> Iterator[Problem]:
    for index, tensor in enumerate(subject.config.input):
        if tensor.optional and subject.batching and subject.backend == "onnxruntime":
            message = f'"{tensor.name}" is optional in a batching ONNX model, which the backend refuses, expected false'
            yield Problem(f"input[{index}].optional", message, "remove optional")


RULES = (
    error("graph-input-unknown", "The graph has no such input.", _input_unknown, _only_candidate),
    error("graph-output-unknown", "The graph has no such output.", _output_unknown, _only_candidate),
    error("graph-input-missing", "An input of the graph is not listed.", _input_missing),
    error("graph-type", "A tensor's data_type is not the graph's.", _type, _set_types),
    error("graph-batch-fixed", "With max_batch_size above 0, a tensor's first axis is fixed.", _batch_fixed),
    error("graph-batch-elsewhere", "The batch is not the first axis of the graph.", _batch_elsewhere),
    error(
        "graph-dims-with-batch",
        "dims spell out the batch that max_batch_size stands for.",
        _dims_with_batch,
        _strip_batch,
    ),
    error("graph-rank", "dims are more or fewer than the graph's axes.", _rank),
    error(
        "graph-dimension",
        "A dimension is not the graph's; an input's -1 does not stand for a fixed one.",
        _dimension,
        _set_dims,
    ),
    error("graph-output-free", "An output's dimension is -1 where the graph's is fixed.", _output_free, _set_dims),
    error("graph-ragged", "allow_ragged_batch on an input that is not one free axis.", _ragged),
    error("optional-with-batching", "The onnxruntime backend refuses optional inputs in a batching model.", _optional),
    warning(
        "graph-output-unlisted", "An output of the graph is not listed, so nobody can ask for it.", _output_unlisted
    ),
)
