"""Rules about instance groups and the threads of their sessions."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject

INTEGER_PARAMETERS = ("intra_op_thread_count", "inter_op_thread_count", "execution_mode")
OTHER_PARAMETERS = (
    "enable_mem_arena",
    "enable_mem_pattern",
    "memory.enable_memory_arena_shrinkage",
    "session.use_device_allocator_for_initializers",
    "cudnn_conv_algo_search",
    "gpu_mem_limit",
    "arena_extend_strategy",
    "do_copy_in_default_stream",
)
NO_GPUS = (ModelInstanceGroup.KIND_CPU, ModelInstanceGroup.KIND_MODEL)
ONNX_RUNTIME = "onnxruntime"


def _groups(subject: Subject) -> Iterator[tuple[str, ModelInstanceGroup]]:
    if not subject.is_ensemble:  # an ensemble may have none at all, which is a rule of its own
        for index, group in enumerate(subject.config.instance_group):
            yield f"instance_group[{index}]", group


def _kind(group: ModelInstanceGroup) -> str:
    return str(ModelInstanceGroup.Kind.Name(group.kind))


def _gpus_on_cpu(subject: Subject) -> Iterator[Problem]:
    for path, group in _groups(subject):
        if group.gpus and group.kind in NO_GPUS:
            message = f"{_kind(group)} lists GPUs {list(group.gpus)}, expected none"
            yield Problem(f"{path}.gpus", message, "remove gpus, or kind: KIND_GPU")


def _drop_gpus(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001 - the signature of a repair
    for group in config.instance_group:
        if group.kind in NO_GPUS:
            group.ClearField("gpus")


def _gpu_negative(subject: Subject) -> Iterator[Problem]:
    for path, group in _groups(subject):
        for index, gpu in enumerate(group.gpus):
            if gpu < 0 and group.kind not in NO_GPUS:
                yield Problem(f"{path}.gpus[{index}]", f"GPU {gpu} cannot exist, expected 0 or more", "gpus: [0]")


def _gpus_with_auto(subject: Subject) -> Iterator[Problem]:
    for path, group in _groups(subject):
        if group.kind == ModelInstanceGroup.KIND_AUTO and group.gpus and min(group.gpus) >= 0:
            message = (
                f"KIND_AUTO lists GPUs {list(group.gpus)}: where one is absent it becomes KIND_CPU, which may list"
                " none, and fails; expected no GPUs, or KIND_GPU"
            )
            yield Problem(f"{path}.gpus", message, "remove gpus, or kind: KIND_GPU")


def _profile(subject: Subject) -> Iterator[Problem]:
    for path, group in _groups(subject):
        if group.profile and subject.backend != "tensorrt":
            message = f"an optimization profile with backend {subject.backend or 'none'}, expected only with tensorrt"
            yield Problem(f"{path}.profile", message, "remove profile")


def _drop_profile(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    for group in config.instance_group:
        group.ClearField("profile")


def _profile_number(subject: Subject) -> Iterator[Problem]:
    for path, group in _groups(subject):
        for index, profile in enumerate(group.profile):
            if subject.backend == "tensorrt" and not profile.isdigit():
                message = f'profile is "{profile}", expected the number of one, as text'
                yield Problem(f"{path}.profile[{index}]", message, 'profile: "0"')


def _count_negative(subject: Subject) -> Iterator[Problem]:
    for path, group in _groups(subject):
        if group.count < 0:
            message = f"count is {group.count}, which Triton replaces by its default, expected 1 or more"
            yield Problem(f"{path}.count", message, "count: 1")


def _count_implicit(subject: Subject) -> Iterator[Problem]:
    if subject.backend != ONNX_RUNTIME:
        return
    message = "the instance count is not set, so ONNX Runtime on a CPU gets 2, expected a count"
    if not subject.config.instance_group:
        yield Problem("instance_group", message, "instance_group [ { count: 1 kind: KIND_CPU } ], or KIND_GPU")
    for path, group in _groups(subject):
        if group.count == 0 and group.kind in (ModelInstanceGroup.KIND_AUTO, ModelInstanceGroup.KIND_CPU):
            yield Problem(f"{path}.count", message, "count: 1, or as many as there are cores for")


def _threads_implicit(subject: Subject) -> Iterator[Problem]:
    groups = subject.config.instance_group
    only_gpus = bool(groups) and all(group.kind == ModelInstanceGroup.KIND_GPU for group in groups)
    name = INTEGER_PARAMETERS[0]
    if subject.backend == ONNX_RUNTIME and not only_gpus and name not in subject.config.parameters:
        message = f"{name} is not set, so every instance starts a thread for each core, expected cores per instance"
        yield Problem("parameters", message, f'parameters {{ key: "{name}" value {{ string_value: "1" }} }}')


def _parameter_value(subject: Subject) -> Iterator[Problem]:
    for name in INTEGER_PARAMETERS:
        if subject.backend != ONNX_RUNTIME or name not in subject.config.parameters:
            continue
        text = subject.config.parameters[name].string_value
        allowed = text in {"0", "1"} if name == "execution_mode" else text.isascii() and text.isdigit()
        if not allowed:
            expected = "0 (sequential) or 1 (parallel)" if name == "execution_mode" else "a whole number, as text"
            message = f'{name} is "{text}", expected {expected}'
            yield Problem(f'parameters["{name}"]', message, 'string_value: "1"')


def _parameter_unknown(subject: Subject) -> Iterator[Problem]:
    known = (*INTEGER_PARAMETERS, *OTHER_PARAMETERS)
    for name in sorted(subject.config.parameters) if subject.backend == ONNX_RUNTIME else ():
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
        if close and name not in known:
            message = f'parameter "{name}" is ignored, expected "{close[0]}"'
            yield Problem(f'parameters["{name}"]', message, f'key: "{close[0]}"')


def _all_passive(subject: Subject) -> Iterator[Problem]:
    groups = list(_groups(subject))
    if groups and all(group.passive for _, group in groups):
        message = "every instance is passive, so no request is ever executed, expected one that is not"
        yield Problem(f"{groups[0][0]}.passive", message, "remove passive")


RULES = (
    error("gpus-without-gpu-kind", "KIND_CPU or KIND_MODEL lists GPUs.", _gpus_on_cpu, _drop_gpus),
    error("gpu-negative", "A GPU's number is negative.", _gpu_negative),
    error("profile-without-tensorrt", "profile with another backend than tensorrt.", _profile, _drop_profile),
    error("profile-not-a-number", "A TensorRT profile is not a number.", _profile_number),
    error("parameter-value", "A numeric parameter of ONNX Runtime has another value.", _parameter_value),
    warning("gpus-with-auto", "KIND_AUTO lists GPUs, which fails on a machine without them.", _gpus_with_auto),
    warning("count-negative", "An instance count below 0 is replaced by the default.", _count_negative),
    warning("count-implicit", "ONNX Runtime on a CPU gets two instances unless count is set.", _count_implicit),
    warning("threads-implicit", "Without intra_op_thread_count every instance takes all cores.", _threads_implicit),
    warning("parameter-unknown", "A parameter is a slip of one that ONNX Runtime reads.", _parameter_unknown),
    warning("all-passive", "Every instance is passive, so requests are never executed.", _all_passive),
)
