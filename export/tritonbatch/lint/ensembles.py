"""Rules about ensembles: what they may not set, and how their tensors run from step to step."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelEnsembling

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject

STEPS = "ensemble_scheduling.step"


def steps(subject: Subject) -> Iterator[tuple[str, ModelEnsembling.Step]]:
    """Every step with its path."""
    for index, step in enumerate(subject.config.ensemble_scheduling.step):
        yield f"{STEPS}[{index}]", step


def known_steps(subject: Subject) -> Iterator[tuple[str, ModelEnsembling.Step, ModelConfig]]:
    """The steps whose model lies in the repository, with its configuration."""
    for path, step in steps(subject):
        if step.model_name in subject.others:
            yield path, step, subject.others[step.model_name]


def _platform(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if config.HasField("ensemble_scheduling") and config.platform != "ensemble":
        message = f'ensemble_scheduling with platform "{config.platform}", expected "ensemble"'
        yield Problem("platform", message, 'platform: "ensemble"')


def _set_platform(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001 - the signature of a repair
    config.platform = "ensemble"


def _backend(subject: Subject) -> Iterator[Problem]:
    if subject.is_ensemble and subject.config.backend:
        yield Problem("backend", f'an ensemble has backend "{subject.config.backend}", expected none', "remove backend")


def _without_scheduling(subject: Subject) -> Iterator[Problem]:
    if subject.config.platform == "ensemble" and not subject.config.HasField("ensemble_scheduling"):
        scheduler = subject.config.WhichOneof("scheduling_choice") or "no scheduler"
        message = f"an ensemble has {scheduler}, expected ensemble_scheduling; batching belongs to its steps"
        yield Problem("ensemble_scheduling", message, f"ensemble_scheduling {{ step [ … ] }} instead of {scheduler}")


def _not_the_place(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    there = {
        "instance_group": bool(config.instance_group),
        "optimization": config.HasField("optimization"),
        "model_warmup": bool(config.model_warmup),
    }
    for name, is_set in there.items():
        if is_set and config.HasField("ensemble_scheduling"):
            yield Problem(
                name, f"an ensemble sets {name}, expected only its steps to", f"move {name} to the steps' models"
            )


def _drop_misplaced(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    for name in ("instance_group", "optimization", "model_warmup"):
        config.ClearField(name)


def _no_steps(subject: Subject) -> Iterator[Problem]:
    if subject.config.HasField("ensemble_scheduling") and not subject.config.ensemble_scheduling.step:
        yield Problem(STEPS, "an ensemble has no step, expected at least one", "step [ { model_name: … } ]")


def _step_incomplete(subject: Subject) -> Iterator[Problem]:
    for path, step in steps(subject):
        for name in ("model_name", "input_map", "output_map"):
            if not getattr(step, name):
                yield Problem(f"{path}.{name}", f"the step has no {name}, expected one", f"{name}: …")


def _step_missing(subject: Subject) -> Iterator[Problem]:
    for path, step in steps(subject):
        if step.model_name and step.model_name not in subject.others:
            there = ", ".join(sorted(set(subject.others) - {subject.model})) or "none"
            message = f'model "{step.model_name}" is not in the repository, expected one of {there}'
            yield Problem(f"{path}.model_name", message, "name a model of the repository, or add it")


def _step_smaller(subject: Subject) -> Iterator[Problem]:
    largest = subject.config.max_batch_size
    for path, step, config in known_steps(subject):
        if 0 < config.max_batch_size < largest:
            message = f'max_batch_size is {largest}, but step "{step.model_name}" takes only {config.max_batch_size}'
            fix = f"max_batch_size: {config.max_batch_size}, or raise it in {step.model_name}"
            yield Problem("max_batch_size", f"{message} ({path}), expected at most that", fix)


def _lower_max(subject: Subject, config: ModelConfig) -> None:
    sizes = [step.max_batch_size for _, _, step in known_steps(subject) if step.max_batch_size]
    config.max_batch_size = min([config.max_batch_size, *sizes])


def _tensor_unknown(subject: Subject) -> Iterator[Problem]:
    for path, step, config in known_steps(subject):
        for kind, mapped in (("input", step.input_map), ("output", step.output_map)):
            names = [tensor.name for tensor in getattr(config, kind)]
            for name in sorted(set(mapped) - set(names)) if names else ():
                message = f'"{name}" is no {kind} of {step.model_name}, expected one of {", ".join(names)}'
                yield Problem(f'{path}.{kind}_map["{name}"]', message, f'key: "{names[0]}"')


def _input_unmapped(subject: Subject) -> Iterator[Problem]:
    for path, step, config in known_steps(subject):
        for tensor in config.input:
            if not tensor.optional and tensor.name not in step.input_map and step.input_map:
                message = f'input "{tensor.name}" of {step.model_name} gets no tensor, expected every input mapped'
                yield Problem(f"{path}.input_map", message, f'input_map {{ key: "{tensor.name}" value: "…" }}')


def _cycle(subject: Subject) -> Iterator[Problem]:
    for path, step in steps(subject):
        if step.model_name == subject.model or subject.model in _reached(subject, step.model_name):
            message = f"{step.model_name} leads back to {subject.model}, expected no cycle"
            yield Problem(f"{path}.model_name", message, "name the model that does the work")


def _reached(subject: Subject, name: str) -> set[str]:
    """The models that *name* uses, directly or not."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        config = subject.others.get(waiting.pop(), ModelConfig())
        new = {step.model_name for step in config.ensemble_scheduling.step} - found
        found |= new
        waiting.extend(new)
    return found


def _priority_lost(subject: Subject) -> Iterator[Problem]:
    for path, step, config in known_steps(subject):
        if config.dynamic_batching.priority_levels:
            message = (
                f"{step.model_name} has {config.dynamic_batching.priority_levels} priority levels, but an ensemble"
                " passes none on (triton-inference-server/server#7116): every request gets its default level"
            )
            yield Problem(f"{path}.model_name", message, "call the step's model directly where priority matters")


RULES = (
    error("ensemble-platform", 'ensemble_scheduling without platform "ensemble".', _platform, _set_platform),
    error("ensemble-backend", "An ensemble names a backend.", _backend),
    error("ensemble-without-scheduling", 'platform "ensemble" without ensemble_scheduling.', _without_scheduling),
    error("ensemble-not-the-place", "An ensemble sets what belongs to its steps.", _not_the_place, _drop_misplaced),
    error("ensemble-without-steps", "An ensemble has no step.", _no_steps),
    error("step-incomplete", "A step lacks its model, its input map or its output map.", _step_incomplete),
    error("step-model-missing", "A step's model is not in the repository.", _step_missing),
    error("step-max-batch", "max_batch_size is over that of a step, unless that is 0.", _step_smaller, _lower_max),
    error(
        "step-tensor-unknown", "A map names an input or output that the step's model does not have.", _tensor_unknown
    ),
    error("step-input-unmapped", "A step's model has an input that no tensor is mapped to.", _input_unmapped),
    error("ensemble-cycle", "An ensemble leads back to itself.", _cycle),
    warning(
        "ensemble-priority",
        "A step has priority levels, which an ensemble does not pass on (server#7116).",
        _priority_lost,
    ),
)
