"""The judge of the linter: the real Triton, asked whether a model loads and answers as its configuration promises."""

from __future__ import annotations

import contextlib
import json
import math
import tomllib
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tritonbatch.server import EmbeddedServer

FREE_SIZE = 7
"""The size that a request gives to an axis that the configuration leaves free."""

Axes = Sequence[int | str]


def _model(nodes: Sequence[onnx.NodeProto], inputs: Mapping[str, Axes], outputs: Mapping[str, Axes]) -> bytes:
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes) for name, axes in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, axes) for name, axes in outputs.items()],
        [numpy_helper.from_array(np.ones((4, 3), np.float32), "weights")],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(proto.SerializeToString())


def _linear(inputs: Axes, outputs: Axes, x: str = "x", y: str = "y") -> bytes:
    return _model([helper.make_node("MatMul", [x, "weights"], [y])], {x: inputs}, {y: outputs})


def _same(axes: Axes, x: str = "x", y: str = "y") -> bytes:
    return _model([helper.make_node("Identity", [x], [y])], {x: axes}, {y: axes})


GRAPHS: Mapping[str, bytes] = {
    "linear": _linear(["batch", 4], ["batch", 3]),
    "fixed": _linear([1, 4], [1, 3]),
    "free": _same(["batch", "n"]),
    "image": _same(["batch", 3, "h", "w"]),
    "unbatched": _same([4]),
    "sequence_first": _same(["seq", "batch", 4]),
    "odd_names": _linear(["batch", 4], ["batch", 3], x="in/put.1", y="yolonms_layer_1/ExpandDims_1:0"),
    "output_fixed": _model(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[0], keepdims=1)], {"x": ["batch", 4]}, {"y": [1, 4]}
    ),
    "logits": _same(["batch", 256, 25]),
    "vector": _same(["batch"]),
    "broken": b"not an ONNX file",
    "two_outputs": _model(
        [helper.make_node("MatMul", ["x", "weights"], ["y"]), helper.make_node("Identity", ["x"], ["z"])],
        {"x": ["batch", 4]},
        {"y": ["batch", 3], "z": ["batch", 4]},
    ),
    "pair": _model([helper.make_node("Add", ["a", "b"], ["c"])], {"a": ["n", 4], "b": ["n", 4]}, {"c": ["n", 4]}),
}


BASE = """\
backend: "onnxruntime"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [4] }
output { name: "y" data_type: TYPE_FP32 dims: [3] }
instance_group { kind: KIND_CPU count: 1 }
parameters { key: "intra_op_thread_count" value { string_value: "1" } }
"""
SAME = BASE.replace("dims: [4]", "dims: [-1]").replace("dims: [3]", "dims: [-1]")
ENSEMBLE = """\
platform: "ensemble"
max_batch_size: 4
input { name: "IN" data_type: TYPE_FP32 dims: [4] }
output { name: "OUT" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling {
step { model_name: "first" model_version: -1
input_map { key: "x" value: "IN" }
output_map { key: "y" value: "middle" } }
step { model_name: "second" model_version: -1
input_map { key: "x" value: "middle" }
output_map { key: "y" value: "OUT" } }
}
"""
STEPS = {
    "first": ("linear", BASE),
    "second": ("free", SAME),
    "urgent": ("linear", f"{BASE}dynamic_batching {{ priority_levels: 2 default_priority_level: 2 }}"),
}


@dataclass(frozen=True)
class Case:
    """A configuration with what the linter must say about it; see cases.toml."""

    rule: str
    field: str = ""
    swap: tuple[tuple[str, str], ...] = ()
    add: str = ""
    cut: str = ""
    graph: str = "linear"
    ensemble: bool = False
    files: tuple[str, ...] = ()
    remove: tuple[str, ...] = ()
    triton: str = ""
    encoding: str = "utf-8"

    def text(self, name: str) -> str:
        """The config.pbtxt of a model called *name*."""
        text = ENSEMBLE if self.ensemble else BASE
        for old, new in self.swap:
            assert old in text, f"{old!r} is not in the base of {self.rule}"
            text = text.replace(old, new, 1)
        if self.cut:
            text = text[: text.index(self.cut)]
        return f"{text}{self.add}\n".replace("NAME", name)

    def write(self, repository: Path, name: str) -> Path:
        """Make the model *name* in *repository*; an ensemble needs :func:`write_steps` beside it."""
        model = write_model(repository, name, None if self.ensemble else self.graph, self.text(name))
        for path in self.files:
            (model / path).parent.mkdir(exist_ok=True)
            (model / path).write_bytes(GRAPHS[self.graph])
        for path in self.remove:
            (model / path).rmdir() if (model / path).is_dir() else (model / path).unlink()
        return model


def write_steps(repository: Path) -> None:
    """The models that ensembles are made of."""
    for name, (graph, text) in STEPS.items():
        write_model(repository, name, graph, text)


def _cases() -> list[Case]:
    entries = tomllib.loads((Path(__file__).parent / "cases.toml").read_text(encoding="utf-8"))["case"]
    return [
        Case(**{key: tuple(map(tuple, value)) if key == "swap" else value for key, value in entry.items()})
        for entry in entries
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test that asks for a `case` once for each case of the table."""
    if "case" in metafunc.fixturenames:
        cases = [case for case in _cases() if case.rule not in OWN_TESTS]
        metafunc.parametrize("case", cases, ids=[f"{case.rule}-{index}" for index, case in enumerate(cases)])


OWN_TESTS = {"not-text", "variant-name", "config-missing"}
"""Rules about something else than the text of a config.pbtxt, which have tests of their own."""


@dataclass(frozen=True)
class Judge:
    """A running Triton with explicit model control over *repository*."""

    repository: Path
    url: str

    def load(self, name: str) -> str:
        """The server's own error for loading *name*; empty when it loads."""
        return self._post(f"/v2/repository/models/{urllib.parse.quote(name)}/load", {}).get("error", "")

    def unload(self, name: str) -> None:
        """Take *name* out, with what it uses."""
        body = {"parameters": {"unload_dependents": True}}
        self._post(f"/v2/repository/models/{urllib.parse.quote(name)}/unload", body)

    def answers(self, name: str) -> str:
        """What is wrong with its answers to zeros in a batch of 1 and of 2; empty when they are as promised."""
        config = self._get(f"/v2/models/{name}/config")
        if "error" in config:
            return str(config["error"])
        if config.get("model_transaction_policy", {}).get("decoupled"):
            return ""  # an HTTP request cannot reach it
        largest = min(config["max_batch_size"], 1) if "sequence_batching" in config else config["max_batch_size"]
        problems = (self._answer(name, config, batch) for batch in ((1, 2) if largest > 1 else (largest and 1,)))
        return next(filter(None, problems), "")

    def verdict(self, name: str) -> str:
        """Load, ask, unload: empty when all went well."""
        try:
            return self.load(name) or self.answers(name)
        finally:
            self.unload(name)

    def _answer(self, name: str, config: Mapping[str, Any], batch: int) -> str:
        tensors = [_zeros(tensor, batch) for tensor in config["input"]]
        sequence = {"sequence_id": 7, "sequence_start": True, "sequence_end": True}
        parameters = sequence if "sequence_batching" in config else {}
        reply = self._post(f"/v2/models/{name}/infer", {"inputs": tensors, "parameters": parameters})
        if "error" in reply:
            return f"batch {batch}: {reply['error']}"
        promised = {tensor["name"]: tensor for tensor in config["output"]}
        return next(
            filter(None, (_broken_promise(promised[each["name"]], each, batch) for each in reply["outputs"])), ""
        )

    def _get(self, path: str) -> dict[str, Any]:
        return self._send(urllib.request.Request(f"http://{self.url}{path}"))

    def _post(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        return self._send(urllib.request.Request(f"http://{self.url}{path}", json.dumps(body).encode(), method="POST"))

    def _send(self, request: urllib.request.Request) -> dict[str, Any]:
        try:
            with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - an http URL built above
                return dict(json.loads(response.read() or b"{}"))
        except urllib.error.HTTPError as error:
            return dict(json.loads(error.read() or b"{}")) or {"error": str(error)}


def _shape(tensor: Mapping[str, Any], batch: int) -> list[int]:
    dims = [FREE_SIZE if int(dim) < 0 else int(dim) for dim in tensor["dims"]]
    return [batch, *dims] if batch else dims


def _zeros(tensor: Mapping[str, Any], batch: int) -> dict[str, Any]:
    shape = _shape(tensor, batch)
    size = math.prod(shape)
    datatype = str(tensor["data_type"]).removeprefix("TYPE_").replace("STRING", "BYTES")
    return {"name": tensor["name"], "datatype": datatype, "shape": shape, "data": [0] * size}


def _broken_promise(promised: Mapping[str, Any], got: Mapping[str, Any], batch: int) -> str:
    if str(promised["data_type"]).removeprefix("TYPE_") != got["datatype"]:
        return f"output {got['name']} is {got['datatype']}, promised {promised['data_type']}"
    dims = [int(dim) for dim in promised["dims"]]
    expected = [batch, *dims] if batch else dims
    fits = len(expected) == len(got["shape"]) and all(
        want in (-1, have) for want, have in zip(expected, got["shape"], strict=True)
    )
    return "" if fits else f"output {got['name']} has shape {got['shape']}, promised {expected}"


def write_model(repository: Path, name: str, graph: str | None, text: str) -> Path:
    """Put the tiny model *graph*, or none, into *repository* under *name*, with *text* as its config.pbtxt."""
    version = repository / name / "1"
    version.mkdir(parents=True)
    if graph is not None:
        (version / "model.onnx").write_bytes(GRAPHS[graph])
    (version.parent / "config.pbtxt").write_text(text, encoding="utf-8")
    return version.parent


@contextlib.contextmanager
def serve(repository: Path) -> Iterator[Judge]:
    """A judge over *repository* for the length of the block."""
    with EmbeddedServer(repository, arguments=["--model-control-mode=explicit"]) as server:
        yield Judge(repository, server.http_url)


@dataclass(frozen=True)
class Bench:
    """What tests write models with."""

    cases: tuple[Case, ...]
    base: str = BASE
    ensemble: str = ENSEMBLE
    write_model: Callable[[Path, str, str | None, str], Path] = write_model
    write_steps: Callable[[Path], None] = write_steps
    serve: Callable[[Path], contextlib.AbstractContextManager[Judge]] = serve


@pytest.fixture(scope="session")
def bench() -> Bench:
    """The table of cases and the functions that write models."""
    return Bench(tuple(_cases()))


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Judge]:
    """A Triton that loads nothing until it is asked to."""
    with serve(tmp_path_factory.mktemp("judged")) as running:
        yield running
