"""Rules about `model_warmup`: what Triton executes before a model is ready, and fails to load without."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelWarmup

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject
from tritonbatch.lint.tensors import shape_text


def _samples(subject: Subject) -> Iterator[tuple[str, ModelWarmup]]:
    for index, sample in enumerate(subject.config.model_warmup):
        if sample.batch_size and not subject.is_ensemble:
            yield f"model_warmup[{index}]", sample


def _inputs(subject: Subject) -> Iterator[tuple[str, str, ModelWarmup.Input]]:
    for path, sample in _samples(subject):
        for name in sorted(sample.inputs):
            yield f'{path}.inputs["{name}"]', name, sample.inputs[name]


def _declared(subject: Subject) -> Iterator[tuple[str, ModelWarmup.Input, ModelInput]]:
    known = {tensor.name: tensor for tensor in subject.config.input}
    for path, name, given in _inputs(subject):
        if name in known:
            yield path, given, known[name]


def _over_max(subject: Subject) -> Iterator[Problem]:
    largest = subject.config.max_batch_size
    for path, sample in _samples(subject):
        if sample.batch_size > max(1, largest):
            message = (
                f"a warm-up batch of {sample.batch_size}, expected 1 to {max(1, largest)} (max_batch_size {largest})"
            )
            yield Problem(f"{path}.batch_size", message, f"batch_size: {max(1, largest)}")


def _clip(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001 - the signature of a repair
    for sample in config.model_warmup:
        sample.batch_size = min(sample.batch_size, max(1, config.max_batch_size))


def _skipped(subject: Subject) -> Iterator[Problem]:
    for index, sample in enumerate(subject.config.model_warmup):
        if not sample.batch_size:
            message = "batch_size is 0, so the sample is skipped, expected 1 or more"
            yield Problem(f"model_warmup[{index}].batch_size", message, "batch_size: 1")


def _no_data(subject: Subject) -> Iterator[Problem]:
    for path, _, given in _inputs(subject):
        if given.WhichOneof("input_data_type") is None:
            message = "no data is given, expected zero_data, random_data or input_data_file"
            yield Problem(path, message, "zero_data: true")


def _free_dim(subject: Subject) -> Iterator[Problem]:
    for path, _, given in _inputs(subject):
        if -1 in given.dims:
            message = f"its dims are {shape_text(given.dims)}, expected a size for every one"
            yield Problem(f"{path}.dims", message, "write the size that you serve most instead of -1")


def _wrong_type(subject: Subject) -> Iterator[Problem]:
    for path, given, tensor in _declared(subject):
        if given.data_type != tensor.data_type:
            expected = DataType.Name(tensor.data_type)
            message = f"its data_type is {DataType.Name(given.data_type)}, expected {expected} as the input has"
            yield Problem(f"{path}.data_type", message, f"data_type: {expected}")


def _set_types(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    known = {tensor.name: tensor.data_type for tensor in config.input}
    for sample in config.model_warmup:
        for name in sample.inputs:
            sample.inputs[name].data_type = known.get(name, sample.inputs[name].data_type)


def _wrong_shape(subject: Subject) -> Iterator[Problem]:
    for path, given, tensor in _declared(subject):
        if -1 not in given.dims and not _fits(list(given.dims), list(tensor.dims)):
            dims = shape_text(tensor.dims)
            message = f"its dims are {shape_text(given.dims)}, expected {dims} as the input has, without the batch"
            yield Problem(f"{path}.dims", message, f"dims: {dims}, with a size for every -1")


def _fits(given: list[int], dims: list[int]) -> bool:
    return len(given) == len(dims) and all(want in (-1, have) for want, have in zip(dims, given, strict=True))


def _input_missing(subject: Subject) -> Iterator[Problem]:
    required = [tensor.name for tensor in subject.config.input if not tensor.optional]
    for path, sample in _samples(subject):
        for name in required:
            if name not in sample.inputs:
                fix = f'inputs {{ key: "{name}" value {{ data_type: … dims: … zero_data: true }} }}'
                yield Problem(f"{path}.inputs", f'input "{name}" is not given, expected every one', fix)


def _file_missing(subject: Subject) -> Iterator[Problem]:
    for path, _, given in _inputs(subject):
        if given.input_data_file and f"warmup/{given.input_data_file}" not in subject.files:
            message = f"there is no warmup/{given.input_data_file}, expected the raw bytes of one row there"
            yield Problem(f"{path}.input_data_file", message, "put the file there, or zero_data: true")


RULES = (
    error("warmup-over-max", "A warm-up batch is larger than max_batch_size.", _over_max, _clip),
    error("warmup-without-data", "A warm-up input says neither zero, random nor which file.", _no_data),
    error("warmup-free-dimension", "A warm-up input has a dimension of -1.", _free_dim),
    error("warmup-type", "A warm-up input's type is not the input's.", _wrong_type, _set_types),
    error("warmup-shape", "A warm-up input's dims do not fit the input's.", _wrong_shape),
    error("warmup-input-missing", "A warm-up sample lacks an input.", _input_missing),
    error("warmup-file-missing", "A warm-up data file does not exist.", _file_missing),
    warning("warmup-skipped", "A warm-up sample of batch size 0 is skipped.", _skipped),
)
