"""What the rules look at: one configuration, with what lies around it in the repository, read beforehand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.export.onnx_file import GraphTensor

MODEL_FILES: Mapping[str, str] = {
    "onnxruntime": "model.onnx",
    "tensorrt": "model.plan",
    "python": "model.py",
    "pytorch": "model.pt",
    "openvino": "model.xml",
}
PLATFORMS: Mapping[str, str] = {
    "onnxruntime_onnx": "onnxruntime",
    "tensorrt_plan": "tensorrt",
    "pytorch_libtorch": "pytorch",
    "tensorflow_graphdef": "tensorflow",
    "tensorflow_savedmodel": "tensorflow",
}
BACKENDS = ("tensorflow", "tensorrt", "onnxruntime", "openvino", "pytorch", "python")
"""In the order in which Triton tries them; either of platform and file name is enough."""


@dataclass(frozen=True, slots=True)
class Graph:
    """What the ONNX file of the served version declares; *problem* says why it could not be read."""

    tensors: tuple[GraphTensor, ...] = ()
    defaults: frozenset[str] = frozenset()
    problem: str = ""

    def of_kind(self, kind: str) -> dict[str, GraphTensor]:
        """The tensors that are an ``input`` or an ``output``, by name."""
        return {tensor.name: tensor for tensor in self.tensors if tensor.kind == kind}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One configuration of one model.

    *files* are the paths below the model directory, *others* the configurations of the repository's models by name,
    *deadline_us* the time within which the callers want their answer, 0 when it is unknown.
    """

    file: Path
    model: str
    config: ModelConfig
    files: frozenset[str] = frozenset()
    graph: Graph | None = None
    others: Mapping[str, ModelConfig] = field(default_factory=dict)
    deadline_us: int = 0

    @property
    def backend(self) -> str:
        """The backend that Triton would choose; empty when it can choose none, or for an ensemble."""
        return backend_of(self.config, self.files, self.model)

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that lie there, ascending."""
        return versions_in(self.files)

    @property
    def served(self) -> tuple[int, ...]:
        """The versions that the version policy selects of those that lie there."""
        return served_versions(self.config, self.versions)

    @property
    def model_file(self) -> str:
        """The name of the model file within a version directory; empty when it depends on the backend."""
        return self.config.default_model_filename or MODEL_FILES.get(self.backend, "")

    @property
    def batching(self) -> bool:
        """Whether the batch axis is implicit."""
        return bool(self.config.max_batch_size > 0)

    @property
    def is_ensemble(self) -> bool:
        """Whether it has steps instead of a backend."""
        return bool(self.config.platform == "ensemble" or self.config.HasField("ensemble_scheduling"))


def backend_of(config: ModelConfig, files: frozenset[str], model: str) -> str:
    """The backend of *config* as Triton completes it: by platform or file name, else by file or model name."""
    if config.backend or config.platform == "ensemble":
        return str(config.backend)
    filename = config.default_model_filename
    if not config.platform and not filename:
        return _backend_by_file(files) or model.partition(".")[2]
    return next(
        (each for each in BACKENDS if PLATFORMS.get(config.platform) == each or MODEL_FILES.get(each) == filename), ""
    )


def _backend_by_file(files: frozenset[str]) -> str:
    present = {path.split("/")[1] for path in files if path.split("/")[0].isdigit() and "/" in path}
    return next((backend for backend in BACKENDS if MODEL_FILES.get(backend) in present), "")


def versions_in(files: frozenset[str]) -> tuple[int, ...]:
    """The numeric directories; one with a leading zero is not found again by Triton."""
    names = {path.split("/")[0] for path in files if "/" in path}
    return tuple(sorted(int(name) for name in names if name.isascii() and name.isdigit() and str(int(name)) == name))


def served_versions(config: ModelConfig, present: Sequence[int]) -> tuple[int, ...]:
    """The versions of *present* that the policy of *config* selects."""
    policy = config.version_policy
    match policy.WhichOneof("policy_choice"):
        case "all":
            return tuple(present)
        case "specific":
            return tuple(version for version in present if version in policy.specific.versions)
        case "latest":
            count = policy.latest.num_versions
            return tuple(present[-count:]) if count else ()
        case _:
            return tuple(present[-1:])
