"""From a repository to what serves a model with TensorRT: a script, a variant, or a clear refusal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from tritonbatch.cli.tensorrt_verb import tensorrt
from tritonbatch.engine import build, prepare
from tritonbatch.engine.prepare import Prepared, Wanted, build_here, write_accelerated, write_script
from tritonbatch.errors import InvalidInput, NotSupported
from tritonbatch.repository.config import read_config


def _no_progress(_step: str) -> None:
    return None


def _tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_script_stands_beside_the_graph_that_it_builds(exported_repository: Path) -> None:
    """The lowered graph, an executable script and the variant that serves the engine are written."""
    prepared = write_script(exported_repository, "layers", Wanted(graph_batches=(4, 16)), {}, _no_progress)
    folder = exported_repository / "layers"
    script = folder / "1" / "build_engine.sh"
    assert os.access(script, os.X_OK)
    assert "--onnx=model.fp16.onnx" in script.read_text()
    assert "--optShapes=x:16x64" in script.read_text()
    assert (folder / "1" / "model.fp16.onnx").is_file()
    config = read_config(folder / "configs" / "tensorrt.pbtxt")
    assert (config.backend, config.default_model_filename) == ("tensorrt", "model.plan")
    assert [graph.batch_size for graph in config.optimization.cuda.graph_spec] == [4, 16]
    assert prepared.variant == "tensorrt"


def test_the_accelerated_variant_has_a_cache_of_its_own(exported_repository: Path) -> None:
    """The cache's folder is one level deep and carries the hash of the graph, since the cache ignores weights."""
    write_accelerated(exported_repository, "layers", Wanted(precision="int8"), {}, _no_progress)
    config = read_config(exported_repository / "layers" / "configs" / "onnxruntime-tensorrt.pbtxt")
    parameters = config.optimization.execution_accelerators.gpu_execution_accelerator[0].parameters
    hashed = prepare.sha256(exported_repository / "layers" / "1" / "model.int8.onnx")[:12]
    assert parameters["trt_engine_cache_path"] == f"/tmp/tritonbatch-layers-{hashed}"  # noqa: S108
    assert config.default_model_filename == "model.int8.onnx"


def test_a_machine_without_a_gpu_leaves_the_repository_alone(
    exported_repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Building here is refused before the graph is lowered."""
    monkeypatch.setattr(build, "load_tensorrt", lambda: None)
    monkeypatch.setattr(build.shutil, "which", lambda _name: None)
    before = _tree(exported_repository)
    with pytest.raises(NotSupported, match="NVIDIA GPU"):
        build_here(exported_repository, "layers", Wanted(), {}, _no_progress)
    assert _tree(exported_repository) == before


@pytest.mark.parametrize("way", [build_here, write_script, write_accelerated])
@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (Wanted(precision="fp8"), "precision is 'fp8'"),
        (Wanted(usual_batch=33), "usual batch is 33"),
        (Wanted(graph_batches=(64,)), "64"),
    ],
)
def test_a_mistake_is_named_before_anything_is_written(
    way: Callable[..., Prepared], wanted: Wanted, words: str, exported_repository: Path
) -> None:
    """Wrong settings are refused on every way, with or without a GPU."""
    before = _tree(exported_repository)
    with pytest.raises(InvalidInput, match=words):
        way(exported_repository, "layers", wanted, {}, _no_progress)
    assert _tree(exported_repository) == before


def test_a_model_that_was_not_exported_is_named(exported_repository: Path) -> None:
    """A name that is not in the repository says what to run."""
    with pytest.raises(InvalidInput, match="tritonbatch export"):
        write_script(exported_repository, "nothing", Wanted(), {}, _no_progress)


@pytest.fixture
def run() -> Callable[..., str]:
    """A function from arguments of the verb to what it prints; errors are raised."""
    app = Typer()
    app.command()(tensorrt)

    def invoke(*arguments: str) -> str:
        result = CliRunner().invoke(app, arguments, catch_exceptions=False)
        return result.output

    return invoke


def test_the_verb_says_what_it_wrote_and_how_to_serve_it(run: Callable[..., str], exported_repository: Path) -> None:
    """Files, what the precision costs and the server's flag are printed."""
    output = run("layers", "--repository", str(exported_repository), "--script", "--precision", "FP16")
    assert "layers/1/build_engine.sh" in output
    assert "differs from FP32 by" in output
    assert "--model-config-name=tensorrt" in output


def test_two_ways_at_once_are_refused(run: Callable[..., str], exported_repository: Path) -> None:
    """A script and ONNX Runtime's accelerator are different variants."""
    with pytest.raises(InvalidInput, match="two ways"):
        run("layers", "--repository", str(exported_repository), "--script", "--onnxruntime")
