"""Small models and graphs to export, and the built-in models exported once for the whole run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from tritonbatch.export.build import build_named
from tritonbatch.export.record import Built
from tritonbatch.models.model import Arrays, Model, TensorSpec
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.layout import write_variants
from tritonbatch.repository.variants import DynamicBatching, standard_variants
from tritonbatch.server import EmbeddedServer

Sizes = Sequence[int | str | None]


@dataclass(frozen=True)
class Export:
    """A built-in model in its folder, with the first build and the one after it."""

    model_directory: Path
    first: Built
    second: Built


def _model(module: torch.nn.Module, output: TensorSpec | None = None) -> Model:
    def sample(batch: int, rng: np.random.Generator) -> Arrays:
        return {"x": rng.standard_normal((batch, 4), dtype=np.float32)}

    return Model(
        name="tiny",
        module=module,
        inputs=(TensorSpec("x", "TYPE_FP32", (4,)),),
        outputs=(output or TensorSpec("y", "TYPE_FP32", (4,)),),
        sample=sample,
        purpose="a test",
    )


@pytest.fixture(scope="session")
def make_model() -> Callable[..., Model]:
    """A function from a module that maps `x` [batch, 4] to one output, by default `y` [batch, 4], to a Model."""
    return _model


@pytest.fixture
def write_graph(tmp_path: Path) -> Callable[..., Path]:
    """A function from nodes and the sizes of `x` and `y` to an .onnx file."""

    def write(nodes: Sequence[onnx.NodeProto], x: Sizes, y: Sizes | None, constant: Sequence[int] = ()) -> Path:
        initializers = [helper.make_tensor("constant", TensorProto.INT64, [len(constant)], constant)]
        graph = helper.make_graph(
            nodes,
            "graph",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, x)],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, y)],
            initializers if constant else [],
        )
        path = tmp_path / "given.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
        return path

    return write


BUILT = ("digits", "ranking_mlp", "minilm", "convnet", "minilm_dynamic", "decoder_step")


@pytest.fixture(scope="session")
def built_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Export]:
    """A function from the name of a built-in model to its export; all are in one repository, each built twice."""
    folder = tmp_path_factory.mktemp("repository")

    @cache
    def build(name: str) -> Export:
        first, second = (build_named(name, folder / name, max_batch_size=16) for _ in range(2))
        return Export(folder / name, first, second)

    return build


@pytest.fixture(scope="session", params=BUILT)
def exported(request: pytest.FixtureRequest, built_in: Callable[[str], Export]) -> Export:
    """Each built-in model, built twice."""
    return built_in(request.param)


@pytest.fixture(scope="session")
def catalogue_server(built_in: Callable[[str], Export]) -> Iterator[EmbeddedServer]:
    """All built-in models on the embedded server, with the dynamic batcher; minilm_dynamic waits 0.3 s for a batch."""
    for name in BUILT:
        export = built_in(name)
        delay_us = 300_000 if name == "minilm_dynamic" else 0
        stem = onnx_config(
            name, export.first.inputs, export.first.outputs, max_batch_size=16, instances=Instances(count=1)
        )
        write_variants(export.model_directory, standard_variants(stem, 8, DynamicBatching(max_queue_delay_us=delay_us)))
    with EmbeddedServer(export.model_directory.parent, config_name="dynamic") as running:
        yield running
