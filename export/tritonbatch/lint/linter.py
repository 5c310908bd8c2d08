"""Run every rule over a repository: read each model's files once, look at each of its configurations."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import ExportRejected, InvalidInput
from tritonbatch.export.onnx_file import graph_tensors
from tritonbatch.lint import (
    batching,
    dataflow,
    ensembles,
    graph,
    instances,
    layout,
    optimization,
    sequences,
    tensors,
    warmup,
)
from tritonbatch.lint.finding import Finding, Rule
from tritonbatch.lint.parse import parse
from tritonbatch.lint.subject import Graph, Subject, backend_of, served_versions, versions_in

TOPICS: Mapping[str, tuple[Rule, ...]] = {
    "Directory and versions": layout.RULES,
    "Inputs and outputs": tensors.RULES,
    "Dynamic batching": batching.RULES,
    "Sequences, cache, metrics": sequences.RULES,
    "Instances and threads": instances.RULES,
    "Optimization": optimization.RULES,
    "Warm-up": warmup.RULES,
    "The ONNX graph": graph.RULES,
    "Ensembles": (*ensembles.RULES, *dataflow.RULES),
}
RULES: tuple[Rule, ...] = tuple(rule for rules in TOPICS.values() for rule in rules)
CONFIG = "config.pbtxt"


def lint_repository(repository: Path, models: Sequence[str] = (), *, deadline_us: int = 0) -> list[Finding]:
    """Every finding in the *models* of *repository*, or in all of them.

    Raises:
        InvalidInput: there is no such repository or model.
    """
    return [
        finding
        for model in chosen_models(repository, models)
        for file in config_files(model)
        for finding in lint_file(file, model, deadline_us=deadline_us)
    ]


def lint_file(file: Path, model: Path, *, deadline_us: int = 0) -> list[Finding]:
    """Every finding in one configuration *file* of the model directory *model*."""
    if not file.is_file():
        return [_no_config(file)]
    config = parse(file)
    return [config] if isinstance(config, Finding) else check(subject_of(file, model, config, deadline_us=deadline_us))


def check(subject: Subject) -> list[Finding]:
    """What all rules say about *subject*."""
    return [finding for rule in RULES for finding in rule.findings(subject)]


def subject_of(file: Path, model: Path, config: ModelConfig, *, deadline_us: int = 0) -> Subject:
    """*config* of *file* with what lies around it in its model directory and repository."""
    files = _files(model)
    return Subject(
        file=file,
        model=model.name,
        config=config,
        files=files,
        graph=_graph(model, config, files),
        others=_others(model.parent, file) if config.HasField("ensemble_scheduling") else {},
        deadline_us=deadline_us,
    )


def config_files(model: Path) -> list[Path]:
    """config.pbtxt, whether it exists or not, and every variant of *model*."""
    variants = sorted((model / "configs").glob("*.pbtxt"))
    return variants if variants and not (model / CONFIG).is_file() else [model / CONFIG, *variants]


def model_directories(repository: Path) -> list[Path]:
    """The directories of *repository* that Triton takes for models.

    Raises:
        InvalidInput: it does not exist, or holds none.
    """
    if not repository.is_dir():
        raise InvalidInput(f"No model repository at {repository}: expected a folder with one folder for each model.")
    found = sorted(path for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))
    if not found:
        raise InvalidInput(
            f"{repository} holds no model: expected one folder for each; run `tritonbatch export` first."
        )
    if (repository / CONFIG).is_file():
        raise InvalidInput(f"{repository} is a model, expected the repository around it: give {repository.parent}.")
    return found


def chosen_models(repository: Path, models: Sequence[str]) -> list[Path]:
    """The directories of *models*, or of all models, in *repository*.

    Raises:
        InvalidInput: there is no such repository or model.
    """
    present = {path.name: path for path in model_directories(repository)}
    if missing := [name for name in models if name not in present]:
        raise InvalidInput(f"No model {missing[0]!r} in {repository}: it holds {', '.join(present)}.")
    return [present[name] for name in models] if models else list(present.values())


def _files(model: Path) -> frozenset[str]:
    """The paths below *model*; a directory ends in a slash, so that an empty version is seen."""
    found = (
        f"{path.relative_to(model).as_posix()}{'/' if path.is_dir() else ''}"
        for path in model.rglob("*")
        if not any(part.startswith(".") for part in path.relative_to(model).parts)
    )
    return frozenset(found)


def _graph(model: Path, config: ModelConfig, files: frozenset[str]) -> Graph | None:
    """The graph of the newest served version; None where no ONNX file is served."""
    served = served_versions(config, versions_in(files))
    if backend_of(config, files, model.name) != "onnxruntime" or not served:
        return None
    name = config.default_model_filename or "model.onnx"
    path = model / str(served[-1]) / name
    path = path / "model.onnx" if path.is_dir() else path
    return read_graph(path) if path.is_file() else None


def read_graph(path: Path) -> Graph:
    """What the ONNX file at *path* declares; its weights are not read."""
    import onnx  # noqa: PLC0415
    from google.protobuf.message import DecodeError  # noqa: PLC0415

    try:
        proto = onnx.load(path, load_external_data=False)
        if not proto.graph.node and not proto.graph.output:
            return Graph(problem=f"{path.name} of version {path.parent.name} holds no graph, expected an ONNX model")
        defaults = frozenset(tensor.name for tensor in proto.graph.initializer)
        return Graph(graph_tensors(proto.graph), defaults & {value.name for value in proto.graph.input})
    except DecodeError:
        return Graph(problem=f"{path.name} of version {path.parent.name} is not ONNX, expected what an exporter wrote")
    except ExportRejected as error:
        return Graph(problem=str(error))


def _others(repository: Path, file: Path) -> dict[str, ModelConfig]:
    """The models of *repository* as they would be served beside *file*: the same variant where they have it."""
    found = {}
    for model in model_directories(repository):
        variant = model / "configs" / file.name
        path = variant if file.parent.name == "configs" and variant.is_file() else model / CONFIG
        config = parse(path) if path.is_file() else ModelConfig()
        found[model.name] = ModelConfig() if isinstance(config, Finding) else config
    return found


def _no_config(file: Path) -> Finding:
    return Finding(
        file=file,
        field="",
        level="warning",
        rule="config-missing",
        message="there is no config.pbtxt, so Triton decides tensors, max_batch_size and scheduler, expected one",
        fix="write one, or run `tritonbatch export`, which does",
    )


def errors_in(findings: Sequence[Finding]) -> Iterator[Finding]:
    """Those of *findings* that keep a model from working."""
    return (finding for finding in findings if finding.level == "error")
