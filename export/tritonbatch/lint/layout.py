"""Rules about the model's directory: its name, its versions, and the file that the backend opens."""

from __future__ import annotations

import difflib
from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import MODEL_FILES, PLATFORMS, Subject

# Directories below a model that are not meant to be versions.
OTHER_DIRECTORIES = frozenset({"configs", "warmup"})


def _name_differs(subject: Subject) -> Iterator[Problem]:
    name = subject.config.name
    if name and name != subject.model:
        yield Problem(
            "name", f'name is "{name}", expected the directory\'s, {subject.model}', f'name: "{subject.model}"'
        )


def _name_from_directory(subject: Subject, config: ModelConfig) -> None:
    config.name = subject.model


def _no_backend(subject: Subject) -> Iterator[Problem]:
    if not subject.backend and not subject.is_ensemble and not subject.config.platform:
        yield Problem(
            "backend",
            "neither backend nor platform is set, and no file in the version directory tells which, expected one",
            'backend: "onnxruntime"',
        )


def _backend_unknown(subject: Subject) -> Iterator[Problem]:
    close = difflib.get_close_matches(subject.backend, MODEL_FILES, n=1, cutoff=0.75)
    if close and close[0] != subject.backend:
        message = f'backend is "{subject.backend}", which Triton does not ship, expected "{close[0]}"'
        yield Problem("backend", message, f'backend: "{close[0]}"')


def _platform_unknown(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if config.platform and not config.backend and config.platform not in (*PLATFORMS, "ensemble"):
        close = difflib.get_close_matches(config.platform, [*PLATFORMS, "ensemble"], n=1, cutoff=0.4)
        fix = f'platform: "{close[0]}"' if close else 'backend: "onnxruntime", and no platform'
        yield Problem("platform", f'platform is "{config.platform}", expected one of {", ".join(PLATFORMS)}', fix)


def _platform_mismatch(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    known = subject.backend in PLATFORMS.values()
    if config.platform and known and PLATFORMS.get(config.platform) != subject.backend:
        message = (
            f'platform is "{config.platform}" with backend "{subject.backend}", expected the platform of that backend'
        )
        yield Problem("platform", message, f'only backend: "{subject.backend}", and no platform')


def _drop_platform(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001 - the signature of a repair
    if config.platform != "ensemble" and config.backend:  # else it is the file name that may be wrong
        config.ClearField("platform")


def _version_missing(subject: Subject) -> Iterator[Problem]:
    if not subject.versions:
        message = "there is no version directory, expected at least one whose name is a number without leading zeros"
        what = "an empty directory" if subject.is_ensemble else "a directory with the model file"
        yield Problem("", message, f"make {what}: {subject.model}/1/")


def _version_ignored(subject: Subject) -> Iterator[Problem]:
    names = {path.split("/")[0] for path in subject.files if "/" in path} - OTHER_DIRECTORIES
    taken = {str(version) for version in subject.versions}
    for name in sorted(names - taken):
        if name.lstrip("vV").isdigit():
            message = f"directory {name} is not served, expected a number without leading zeros or letters"
            yield Problem("", message, f"rename it to {int(name.lstrip('vV'))}")


def _version_policy_empty(subject: Subject) -> Iterator[Problem]:
    if subject.versions and not subject.served:
        present = ", ".join(map(str, subject.versions))
        message = f"the version policy selects none of the versions that lie there ({present}), expected at least one"
        yield Problem(
            "version_policy", message, f"version_policy {{ specific {{ versions: [{subject.versions[-1]}] }} }}"
        )


def _latest_version(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    config.ClearField("version_policy")


def _model_file_missing(subject: Subject) -> Iterator[Problem]:
    if subject.is_ensemble or not subject.model_file:
        return
    for version in subject.served:
        wanted = f"{version}/{subject.model_file}"
        if not any(path == wanted or path.startswith(f"{wanted}/") for path in subject.files):
            there = sorted(path.partition("/")[2] for path in subject.files if path.startswith(f"{version}/"))
            fix = f'default_model_filename: "{there[0]}"' if len(there) == 1 and there[0] else f"put it at {wanted}"
            listed = ", ".join(filter(None, there)) or "nothing"
            message = f"version {version} has no {subject.model_file}, got {listed}, expected it there"
            yield Problem("default_model_filename", message, fix)


def _model_file_unreadable(subject: Subject) -> Iterator[Problem]:
    if subject.graph is not None and subject.graph.problem:
        yield Problem("", subject.graph.problem, "export the model again, and keep its weight files beside it")


def _label_file_missing(subject: Subject) -> Iterator[Problem]:
    for index, output in enumerate(subject.config.output):
        if output.label_filename and output.label_filename not in subject.files:
            message = f"{output.label_filename} does not lie beside config.pbtxt, expected one label for each line"
            yield Problem(f"output[{index}].label_filename", message, "put the file there, or remove label_filename")


def _variant_name(subject: Subject) -> Iterator[Problem]:
    if subject.file.parent.name == "configs" and " " in subject.file.stem:
        message = f"the variant's name {subject.file.stem!r} has a space, which --model-config-name cannot give"
        yield Problem("", message, f"rename it to {subject.file.stem.replace(' ', '_')}.pbtxt")


def _auto_completed(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    if subject.backend != "onnxruntime" or (config.input and config.output):
        return
    missing = " and ".join(what for what in ("input", "output") if not getattr(config, what))
    scheduler = "" if config.WhichOneof("scheduling_choice") else " and may add dynamic_batching"
    message = f"{missing} is not written, so Triton takes it from the model{scheduler}, expected both"
    yield Problem(missing.partition(" ")[0], message, "write every input and output, and max_batch_size")


RULES = (
    error("name-differs", "`name` is not the directory's name.", _name_differs, _name_from_directory),
    error("backend-missing", "Neither backend nor platform is set, nor told by the model file.", _no_backend),
    error("backend-unknown", "The backend's name is a slip of one that Triton ships.", _backend_unknown),
    error("platform-unknown", "Triton knows no such platform, and no backend is set.", _platform_unknown),
    error("platform-mismatch", "The platform belongs to another backend.", _platform_mismatch, _drop_platform),
    error("version-missing", "There is no version directory: a number without leading zeros.", _version_missing),
    error(
        "version-policy-empty",
        "The version policy selects no version that exists.",
        _version_policy_empty,
        _latest_version,
    ),
    error("model-file-missing", "A served version lacks the file that the backend opens.", _model_file_missing),
    error("model-file-unreadable", "The ONNX file cannot be read, or exchanges no tensors.", _model_file_unreadable),
    error("label-file-missing", "An output's label file does not exist.", _label_file_missing),
    warning(
        "version-ignored", "A directory looks like a version but is not one, such as `v2` or `01`.", _version_ignored
    ),
    warning("variant-name", "A variant's file name has a space.", _variant_name),
    warning(
        "auto-completed", "Inputs or outputs are left out, so Triton decides them and the batching.", _auto_completed
    ),
)
