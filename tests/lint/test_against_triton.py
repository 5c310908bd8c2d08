"""The real Triton judges the linter: what it calls an error must not work there, and everything else must."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInstanceGroup, ModelQueuePolicy

from tritonbatch.lint.finding import Finding
from tritonbatch.lint.linter import check, lint_file, subject_of
from tritonbatch.lint.repair import repaired_config
from tritonbatch.repository.config import config_text

pytestmark = [pytest.mark.triton, pytest.mark.timeout(600)]

SEED = 20261130
RANDOM_MODELS = 215
PARALLEL_LOADS = 4
VERSION = "2.51.0"

# Errors that this server lets pass, and why. Sources are those of triton-inference-server.
EMBEDDED = "the embedded backend does not check it"
LET_PASS = {
    "graph-output-free": f"{EMBEDDED}: onnxruntime_utils.cc CompareDimsSupported wants outputs as in the graph",
    "optional-with-batching": f"{EMBEDDED}: onnxruntime.cc ValidateInputs refuses optional inputs of a batching model",
    "graph-ragged": f"{EMBEDDED}: onnxruntime.cc ValidateInputs wants a graph input of shape [-1]",
    "graph-batch-elsewhere": "it loads everywhere and joins requests along the wrong axis, which zeros do not show",
    "accelerator-unknown": f"{EMBEDDED}: onnxruntime.cc refuses it, where there is a GPU",
    "accelerator-parameter": f"{EMBEDDED}: onnxruntime.cc refuses it, where there is a GPU",
    "accelerator-value": f"{EMBEDDED}: onnxruntime.cc refuses it, where there is a GPU",
}
# Warnings, or nothing, where this server refuses, and why.
REFUSED_HERE = {
    "field-newer-than-server": "Triton 2.51 does not know the field; later versions do",
    "gpus-with-auto": "there is no GPU here, and it works where the listed ones are",
}
NO_GPU = "KIND_GPU: there is no GPU here, and it works where there is one"


@dataclass(frozen=True)
class Trial:
    """A generated model, what the linter said and what the server did."""

    name: str
    text: str
    findings: tuple[Finding, ...]
    refused: str

    @property
    def agrees(self) -> bool:
        """Whether both verdicts are the same."""
        return bool(self.errors) == bool(self.refused)

    @property
    def errors(self) -> set[str]:
        """The rules behind the linter's errors."""
        return {each.rule for each in self.findings if each.level == "error"}

    @property
    def excuse(self) -> str:
        """Why a disagreement is right; empty when it is not."""
        if self.errors:
            return "; ".join(sorted({LET_PASS[rule] for rule in self.errors})) if self.errors <= LET_PASS.keys() else ""
        if "KIND_GPU" in self.text:
            return NO_GPU
        return next((REFUSED_HERE[each.rule] for each in self.findings if each.rule in REFUSED_HERE), "")


# What each graph is configured as when nothing is wrong; random changes start from here.
RIGHT = {
    "linear": (("x", (4,)), ("y", (3,)), 8),
    "free": (("x", (-1,)), ("y", (-1,)), 8),
    "image": (("x", (3, -1, -1)), ("y", (3, -1, -1)), 4),
    "unbatched": (("x", (4,)), ("y", (4,)), 0),
    "odd_names": (("in/put.1", (4,)), ("yolonms_layer_1/ExpandDims_1:0", (3,)), 8),
    "fixed": (("x", (1, 4)), ("y", (1, 3)), 0),
}


def right(graph: str) -> ModelConfig:
    """A configuration of *graph* without a fault."""
    (x, x_dims), (y, y_dims), largest = RIGHT[graph]
    config = ModelConfig(backend="onnxruntime", max_batch_size=largest)
    config.input.add(name=x, data_type=DataType.TYPE_FP32, dims=x_dims)
    config.output.add(name=y, data_type=DataType.TYPE_FP32, dims=y_dims)
    config.instance_group.add(count=1, kind=ModelInstanceGroup.KIND_CPU)
    config.parameters["intra_op_thread_count"].string_value = "1"
    return config


def _preferred(config: ModelConfig, rng: random.Random) -> None:
    config.dynamic_batching.preferred_batch_size[:] = rng.choices([-1, 0, 1, 2, 4, 8, 9, 16], k=rng.randint(0, 3))
    config.dynamic_batching.max_queue_delay_microseconds = rng.choice([0, 100, 5000])


def _priorities(config: ModelConfig, rng: random.Random) -> None:
    batching = config.dynamic_batching
    batching.priority_levels, batching.default_priority_level = rng.randint(0, 3), rng.randint(0, 4)
    if rng.random() < 0.5:
        batching.priority_queue_policy[rng.randint(0, 4)].max_queue_size = 3


def _ordering(config: ModelConfig, rng: random.Random) -> None:
    policy = config.dynamic_batching.default_queue_policy
    config.dynamic_batching.preserve_ordering = True
    policy.timeout_action = rng.choice([ModelQueuePolicy.REJECT, ModelQueuePolicy.DELAY])
    policy.default_timeout_microseconds = rng.choice([0, 10_000_000])


def _max_batch(config: ModelConfig, rng: random.Random) -> None:
    config.max_batch_size = rng.choice([-1, 0, 1, 2, 4, 8, 64])


def _dims(config: ModelConfig, rng: random.Random) -> None:
    tensor = rng.choice([config.input[0], config.output[0]])
    if rng.random() < 0.5:
        tensor.dims[:] = [rng.choice([-1, 1]), *tensor.dims]
    else:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice([-2, -1, 0, 1, 3, 4, 5])


def _type(config: ModelConfig, rng: random.Random) -> None:
    tensor = rng.choice([config.input[0], config.output[0]])
    tensor.data_type = rng.choice([DataType.TYPE_INVALID, DataType.TYPE_FP32, DataType.TYPE_INT64, DataType.TYPE_FP64])


def _name(config: ModelConfig, rng: random.Random) -> None:
    rng.choice([config.input[0], config.output[0]]).name = rng.choice(["", "x", "y", "z"])


def _reshape(config: ModelConfig, rng: random.Random) -> None:
    shapes: list[list[int]] = [[4], [2, 2], [-1, 4], [1, 4], [0], [-1], []]
    tensor = config.input[0]
    tensor.reshape.shape[:] = list(tensor.dims)
    (tensor.reshape.shape if rng.random() < 0.5 else tensor.dims)[:] = rng.choice(shapes)


def _instances(config: ModelConfig, rng: random.Random) -> None:
    group = config.instance_group[0]
    group.kind = rng.choice([0, 1, 2, 3])
    group.count = rng.choice([-1, 1, 1])
    group.gpus[:] = rng.choice([[], [], [0], [-1]])
    group.profile[:] = rng.choice([[], [], ["0"]])


def _warmup(config: ModelConfig, rng: random.Random) -> None:
    sample = config.model_warmup.add(name="sample", batch_size=rng.choice([0, 1, 4, 8, 32]), count=1)
    if rng.random() < 0.8:
        given = sample.inputs[config.input[0].name]
        given.data_type = rng.choice([DataType.TYPE_FP32, DataType.TYPE_FP32, DataType.TYPE_INT32])
        given.dims[:] = [rng.choice([1, dim, 4]) for dim in config.input[0].dims]
        given.zero_data = rng.random() < 0.9


def _cache(config: ModelConfig, rng: random.Random) -> None:
    config.response_cache.enable = True
    config.model_transaction_policy.decoupled = rng.random() < 0.5


def _sequences(config: ModelConfig, rng: random.Random) -> None:
    if rng.random() < 0.5:
        config.sequence_batching.oldest.preferred_batch_size[:] = rng.choices([0, 2, 8, 16], k=2)
    else:
        config.sequence_batching.direct.minimum_slot_utilization = rng.choice([-0.5, 0, 0.5, 1.5])


def _control(config: ModelConfig, rng: random.Random) -> None:
    for _ in range(rng.randint(1, 2)):
        tensor = config.sequence_batching.control_input.add(name=rng.choice(["", "START", "END"]))
        control = tensor.control.add(kind=rng.choice([0, 1, 2, 3]))
        control.int32_false_true[:] = rng.choice([[], [0, 1], [1]])
        control.data_type = rng.choice([DataType.TYPE_UINT64, DataType.TYPE_FP32])


def _versions(config: ModelConfig, rng: random.Random) -> None:
    policy = config.version_policy
    policy.latest.num_versions = rng.randint(0, 2)
    if rng.random() < 0.5:
        policy.specific.versions[:] = rng.choice([[1], [2], [1, 2]])


def _identity(config: ModelConfig, rng: random.Random) -> None:
    config.name = rng.choice(["", "another"])
    config.platform = rng.choice(["", "onnxruntime_onnx", "tensorrt_plan", "pytorch_libtorch"])
    config.backend = rng.choice(["", "onnxruntime", "onnxruntime"])
    config.default_model_filename = rng.choice(["", "", "model.onnx", "other.onnx"])


def _flags(config: ModelConfig, rng: random.Random) -> None:
    tensor = config.input[0]
    tensor.format = rng.choice([0, 1, 2])
    tensor.is_shape_tensor = rng.random() < 0.2
    config.output[0].label_filename = rng.choice(["", "labels.txt"])


def _batch_input(config: ModelConfig, rng: random.Random) -> None:
    entry = config.batch_output.add(source_input=[rng.choice([config.input[0].name, "z"])])
    entry.target_name[:] = rng.choice([[config.output[0].name], [config.output[0].name] * 2, ["z"]])


def _parameters(config: ModelConfig, rng: random.Random) -> None:
    config.parameters["intra_op_thread_count"].string_value = rng.choice(["1", "2", "all", ""])
    config.parameters["execution_mode"].string_value = rng.choice(["0", "1"])


CHANGES: tuple[Callable[[ModelConfig, random.Random], None], ...] = (
    _preferred, _priorities, _ordering, _max_batch, _dims, _type, _name, _reshape, _instances,
    _warmup, _cache, _sequences, _control, _versions, _identity, _flags, _batch_input, _parameters,
)  # fmt: skip


def generated(count: int, seed: int = SEED) -> Iterator[tuple[str, str]]:
    """*count* graphs with a configuration each, the same ones every time."""
    rng = random.Random(seed)
    for number in range(count):
        graph = rng.choice(list(RIGHT))
        config = right(graph)
        chosen = [CHANGES[number % len(CHANGES)], *rng.sample(CHANGES, rng.choice([0, 0, 1, 2]))]
        for change in chosen:
            change(config, rng)
        yield graph, config_text(config)


def _errors(model: Path) -> set[str]:
    return {each.rule for each in lint_file(model / "config.pbtxt", model) if each.level == "error"}


def _tried(judge: Any, name: str) -> Trial:
    file = judge.repository / name / "config.pbtxt"
    findings = tuple(lint_file(file, file.parent))
    text = file.read_text(encoding="utf-8", errors="replace")
    return Trial(name, text, findings, judge.verdict(name))


@pytest.fixture(scope="module")
def trials(bench: Any, judge: Any) -> list[Trial]:
    """Every judged case of the table and the random configurations, linted and tried."""
    bench.write_steps(judge.repository)
    for step in ("first", "second", "urgent"):
        assert judge.load(step) == ""
    fatal = {case.rule for case in bench.cases if case.triton == "fatal"}
    names: list[str] = []
    for index, case in enumerate(case for case in bench.cases if not case.triton):
        names.append(f"case_{index}_{case.rule}")
        case.write(judge.repository, names[-1])
    for index, (graph, text) in enumerate(generated(RANDOM_MODELS)):
        names.append(f"random_{index}")
        bench.write_model(judge.repository, names[-1], graph, text)
    names = [name for name in names if not fatal & _errors(judge.repository / name)]
    with ThreadPoolExecutor(PARALLEL_LOADS) as pool:
        return list(pool.map(lambda name: _tried(judge, name), names))


def test_linter_agrees_with_triton(trials: list[Trial], capsys: pytest.CaptureFixture[str]) -> None:
    """On hundreds of configurations the linter's verdict is the server's, but for differences listed by name."""
    excused: dict[str, int] = {}
    unexplained = []
    for trial in trials:
        if not trial.agrees and trial.excuse:
            excused[trial.excuse] = excused.get(trial.excuse, 0) + 1
        elif not trial.agrees:
            unexplained.append(f"{trial.name}: {sorted(trial.errors)} / {trial.refused[:300]!r}\n{trial.text}")
    working = sum(not trial.refused for trial in trials)
    agreed = sum(trial.agrees for trial in trials)
    with capsys.disabled():
        print(
            f"\nlint agrees with Triton {VERSION} on {agreed} of {len(trials)} configurations ({working} of them work)"
        )
        for reason, count in sorted(excused.items()):
            print(f"  {count} differ: {reason}")
    assert not unexplained, "\n".join(unexplained)
    assert {*LET_PASS.values(), *REFUSED_HERE.values()} <= set(excused), "a listed difference no longer occurs"
    assert len(trials) >= 300
    assert 40 <= working <= len(trials) - 40


# What can be checked only after something else is repaired: the file of a version that was not served before,
# the graph of that file or of a renamed input, and a warm-up that fits the wrong dims of before.
UNCOVERED = {"warmup-shape", "model-file-missing", "graph-dimension", "graph-output-free", "graph-rank", "graph-type"}


def test_repairs_settle_and_only_help(bench: Any, tmp_path: Path) -> None:
    """On random configurations a repair adds no error, and there is nothing left to repair after it."""
    models = {graph: bench.write_model(tmp_path, graph, graph, "") for graph in RIGHT}
    for graph, text in generated(600, seed=SEED + 1):
        model = models[graph]
        subject = subject_of(model / "config.pbtxt", model, text_format.Parse(text, ModelConfig()))
        config, _ = repaired_config(subject)
        again = replace(subject, config=config)
        before = {each.rule for each in check(subject) if each.level == "error"}
        after = {each.rule for each in check(again) if each.level == "error"}
        assert repaired_config(again)[0] == config
        assert after <= before | UNCOVERED, text
