"""An ensemble of two steps: a pre-processing model, then the model, joined inside the server.

Each step keeps its own batcher and instances, so each batches at its own size; the ensemble itself has neither, and
Triton does not pass a request's priority on to its steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelOutput

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import MODEL_NAME


def ensemble(name: str, first: ModelConfig, second: ModelConfig, tensors: Mapping[str, str]) -> ModelConfig:
    """The ensemble *name* that feeds outputs of *first* to inputs of *second*, as *tensors* says (input: output).

    It takes the inputs of *first* and those of *second* that are not fed, and returns the outputs of *second*.

    Raises:
        InvalidInput: a tensor does not exist, two that are joined differ in type or shape, or two names collide.
    """
    _check_names(name, first, second)
    produced = {output.name: output for output in first.output}
    fed = {tensor.name: tensor for tensor in second.input if tensor.name in tensors}
    _check_mapping(first, second, tensors)
    for input_name, output_name in tensors.items():
        _check_joint(first, produced[output_name], second, fed[input_name])
    config = ModelConfig(name=name, platform="ensemble", max_batch_size=_max_batch(first, second))
    config.input.extend(_merged(first.input, [tensor for tensor in second.input if tensor.name not in fed]))
    config.output.extend(_plain(tensor) for tensor in second.output)
    _add_steps(config, first, second, tensors)
    return config


def _add_steps(config: ModelConfig, first: ModelConfig, second: ModelConfig, tensors: Mapping[str, str]) -> None:
    # Internal names carry the step, so that they never meet those of the ensemble.
    internal = {output: f"{first.name}/{output}" for output in tensors.values()}
    step = config.ensemble_scheduling.step.add(model_name=first.name, model_version=-1, output_map=internal)
    step.input_map.update({tensor.name: tensor.name for tensor in first.input})
    step = config.ensemble_scheduling.step.add(model_name=second.name, model_version=-1)
    for tensor in second.input:
        step.input_map[tensor.name] = internal[tensors[tensor.name]] if tensor.name in tensors else tensor.name
    step.output_map.update({tensor.name: tensor.name for tensor in second.output})


def _check_names(name: str, first: ModelConfig, second: ModelConfig) -> None:
    if not MODEL_NAME.fullmatch(name):
        raise InvalidInput(f"Model name {name!r} cannot be used: expected letters, digits, '_', '-' and '.' only.")
    if len({name, first.name, second.name}) != 3:
        raise InvalidInput(
            f"The ensemble {name!r} joins {first.name!r} and {second.name!r}: expected three different names."
        )


def _check_mapping(first: ModelConfig, second: ModelConfig, tensors: Mapping[str, str]) -> None:
    inputs, outputs = [t.name for t in second.input], [t.name for t in first.output]
    if not tensors:
        raise InvalidInput(f"Nothing of {first.name} is fed to {second.name}: expected at least one of {outputs}.")
    for input_name, output_name in tensors.items():
        if input_name not in inputs:
            raise InvalidInput(f"{second.name} has no input {input_name!r} to feed: expected one of {inputs}.")
        if output_name not in outputs:
            raise InvalidInput(f"{first.name} has no output {output_name!r} to feed: expected one of {outputs}.")


def _check_joint(first: ModelConfig, output: ModelOutput, second: ModelConfig, target: ModelInput) -> None:
    same_rank = len(output.dims) == len(target.dims)
    fits = same_rank and all(a == b or -1 in (a, b) for a, b in zip(output.dims, target.dims, strict=True))
    if output.data_type != target.data_type or not fits:
        raise InvalidInput(
            f"Output {output.name!r} of {first.name} is {_shown(output)}, expected {_shown(target)} "
            f"as input {target.name!r} of {second.name}; convert it in {first.name}."
        )


def _shown(tensor: ModelInput | ModelOutput) -> str:
    return f"{DataType.Name(tensor.data_type)} {list(tensor.dims)}"


def _max_batch(first: ModelConfig, second: ModelConfig) -> int:
    sizes = (int(first.max_batch_size), int(second.max_batch_size))
    if 0 in sizes and max(sizes) > 0:
        raise InvalidInput(
            f"max_batch_size is {sizes[0]} in {first.name} and {sizes[1]} in {second.name}: expected both to batch, or "
            "neither."
        )
    return min(sizes)


def _merged(first: Sequence[ModelInput], rest: Sequence[ModelInput]) -> list[ModelInput]:
    """One input for each name; the same name twice is one tensor for both steps, if it is the same tensor."""
    known = {tensor.name: _plain_input(tensor) for tensor in first}
    for tensor in rest:
        plain = _plain_input(tensor)
        if known.setdefault(tensor.name, plain) != plain:
            raise InvalidInput(
                f"Input {tensor.name!r} is {_shown(known[tensor.name])} in one step and {_shown(tensor)} in the other: "
                "expected one tensor for both, or another name."
            )
    return list(known.values())


def _plain_input(tensor: ModelInput) -> ModelInput:
    return ModelInput(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)


def _plain(tensor: ModelOutput) -> ModelOutput:
    return ModelOutput(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
