"""From flags to files: what `export` writes for variants, GPUs and versions, and what `rollback` says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import typer
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from tritonbatch.cli.batching import Batching, check_batching
from tritonbatch.cli.batching_flags import gpu_numbers, priority_of
from tritonbatch.cli.export import export
from tritonbatch.cli.rollback import rollback
from tritonbatch.errors import InvalidInput, TritonbatchError
from tritonbatch.repository.config import read_config
from tritonbatch.repository.priority import Priority, QueuePolicy
from tritonbatch.repository.versions import set_aside, versions

APP = typer.Typer()
APP.command(name="export")(export)
APP.command(name="rollback")(rollback)


def run(*arguments: str) -> str:
    """Run a verb and return what it printed; a failure is raised."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(APP, arguments)
    if isinstance(result.exception, TritonbatchError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def onnx_file(path: Path, factor: float) -> str:
    """Write the model y = factor * x."""
    made = helper.make_graph(
        [helper.make_node("Mul", ["x", "factor"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
        [numpy_helper.from_array(np.array(factor, np.float32), "factor")],
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return str(path)


def written(repository: Path) -> list[str]:
    """The configuration files of model m."""
    return sorted(path.stem for path in (repository / "m" / "configs").glob("*.pbtxt"))


def test_versions_are_kept_and_rolled_back(tmp_path: Path) -> None:
    """A changed model becomes the next version, an unchanged one none, and rollback says what is served."""
    repository = ("--repository", str(tmp_path / "r"))
    model = tmp_path / "r" / "m"
    for factor in (1, 1, 2, 3):
        text = run("export", onnx_file(tmp_path / "m.onnx", factor), *repository, "--keep", "2")
    assert "version 3 is served; kept: 2, 3" in text
    assert versions(model) == (2, 3)
    assert (model / "3" / "export.json").exists()
    assert "m: unchanged" in run("export", str(tmp_path / "m.onnx"), *repository, "--keep", "2")
    assert "m: version 2 is served (was 3); set aside: 3." in run("rollback", "m", *repository)
    assert "m: version 3 is served (was 2); set aside: none." in run("rollback", "m", *repository, "--to", "3")
    with pytest.raises(InvalidInput, match=r"m has no version 9: it has versions 2, 3 \(served\)"):
        run("rollback", "m", *repository, "--to", "9")
    with pytest.raises(InvalidInput, match="No model 'n' in"):
        run("rollback", "n", *repository)
    with pytest.raises(InvalidInput, match="give --keep N"):
        run("export", str(tmp_path / "m.onnx"), *repository)
    assert (versions(model), set_aside(model)) == ((2, 3), ())


def test_a_rejected_model_leaves_the_served_version(tmp_path: Path) -> None:
    """A file that cannot batch is refused with --keep as without, and nothing of it is left."""
    repository = ("--repository", str(tmp_path / "r"))
    run("export", onnx_file(tmp_path / "m.onnx", 1), *repository, "--keep", "2")
    before = sorted(str(path) for path in (tmp_path / "r").rglob("*"))
    proto = onnx.load(tmp_path / "m.onnx")
    for tensor in (*proto.graph.input, *proto.graph.output):
        tensor.type.tensor_type.shape.dim[0].dim_value = 1
    onnx.save(proto, tmp_path / "m.onnx")
    with pytest.raises(TritonbatchError, match="axis 0 fixed at 1"):
        run("export", str(tmp_path / "m.onnx"), *repository, "--keep", "2")
    assert sorted(str(path) for path in (tmp_path / "r").rglob("*")) == before


def test_flags_choose_what_is_written(tmp_path: Path) -> None:
    """Each --variant is a file, the first is config.pbtxt where dynamic is not among them, and extras are in all."""
    repository = tmp_path / "r"
    variants = [part for name in ("online", "static-32", "priority", "two-instances") for part in ("--variant", name)]
    extras = ["--warm-up", "--cache", "--priority-levels", "3", "--level", "3:max-queue=100,timeout-us=5,action=delay"]
    run("export", onnx_file(tmp_path / "m.onnx", 1), "--repository", str(repository), *variants, *extras)
    assert written(repository) == ["online", "priority", "static-32", "two-instances"]
    default = repository / "m" / "config.pbtxt"
    assert default.read_text().startswith("# online: ")
    for path in (default, *(repository / "m" / "configs").glob("*.pbtxt"), repository / "m_bulk" / "config.pbtxt"):
        config = read_config(path)
        assert config.response_cache.enable
        assert config.model_warmup
    policy = read_config(repository / "m" / "configs" / "priority.pbtxt").dynamic_batching.priority_queue_policy[3]
    assert (policy.max_queue_size, policy.default_timeout_microseconds, policy.timeout_action) == (100, 5, 1)
    assert (repository / "m_bulk" / "1" / "model.onnx").is_file()


def test_gpus_and_objectives_are_files_of_their_own(tmp_path: Path) -> None:
    """--gpus lists them in every variant; --for-gpu and --slo-ms add files that say where their numbers come from."""
    repository = tmp_path / "r"
    flags = ["--gpus", "0,1", "--for-gpu", "l4", "--for-gpu", "H100", "--slo-ms", "100", "--max-batch-size", "16"]
    run("export", onnx_file(tmp_path / "m.onnx", 1), "--repository", str(repository), *flags)
    assert written(repository) == ["dynamic", "dynamic-slo", "h100", "l4", "serial", "static"]
    folder = repository / "m" / "configs"
    assert list(read_config(folder / "serial.pbtxt").instance_group[0].gpus) == [0, 1]
    assert read_config(folder / "l4.pbtxt").max_batch_size == 16
    assert (folder / "l4.pbtxt").read_text().startswith("# l4: dynamic. L4: more than 256 rows compute no faster each")
    assert not read_config(folder / "dynamic.pbtxt").HasField("model_metrics")
    assert read_config(folder / "dynamic-slo.pbtxt").HasField("model_metrics")


def test_without_a_gpu_here_the_defaults_are_those_of_a_cpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """--gpu on a machine without one begins at 64, on a T4 at what that GPU and the row allow."""
    monkeypatch.setattr("tritonbatch.repository.gpu_in_hand.shutil.which", lambda _: None)
    model = onnx_file(tmp_path / "m.onnx", 1)
    run("export", model, "--repository", str(tmp_path / "r"), "--gpu")
    assert read_config(tmp_path / "r" / "m" / "configs" / "static.pbtxt").max_batch_size == 32
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'Tesla T4, 15360'\n")
    fake.chmod(0o755)
    monkeypatch.setattr("tritonbatch.repository.gpu_in_hand.shutil.which", lambda _: str(fake))
    text = run("export", model, "--repository", str(tmp_path / "r"), "--gpu", "--row-mib", "100")
    assert "Begin at batches of 32 (Tesla T4: more than 128 rows compute no faster each" in text
    assert read_config(tmp_path / "r" / "m" / "configs" / "dynamic.pbtxt").max_batch_size == 32


def test_levels_are_read() -> None:
    """A level with its policy, two levels by default, and numbers of GPUs."""
    assert priority_of(None, ()) == Priority()
    assert priority_of(3, ["1:timeout-us=7,action=delay", "3:max-queue=9"]) == Priority(
        levels=3,
        policies={1: QueuePolicy(timeout_us=7, timeout_action="DELAY"), 3: QueuePolicy(max_queue_size=9)},
    )
    assert (gpu_numbers(None), gpu_numbers("0, 2")) == ((), (0, 2))


@pytest.mark.parametrize("text", ["", "1", "x:max-queue=1", "1:max-queue=x", "1:size=3", "1:max-queue=-1", "1:a=b=c"])
def test_a_level_that_cannot_be_read_is_said(text: str) -> None:
    """The sentence shows the whole form that was expected."""
    with pytest.raises(InvalidInput, match=r"such as 1:timeout-us=200000,action=reject,max-queue=100"):
        priority_of(None, [text])


@pytest.mark.parametrize("text", ["", "0,", "a", "-1", "0;1", "²"])
def test_gpus_that_are_no_numbers_are_said(text: str) -> None:
    """The sentence shows what a list looks like."""
    with pytest.raises(InvalidInput, match="such as 0,1"):
        gpu_numbers(text)


@pytest.mark.parametrize(
    ("batching", "says"),
    [
        (Batching(max_batch_size=8, static_batch=4, variants=("online", "online")), "expected each once"),
        (Batching(max_batch_size=8, static_batch=4, variants=("turbo",)), "No variant is named 'turbo'"),
        (Batching(max_batch_size=8, static_batch=4, variants=("static-9",)), "static batch size is 9: expected 1 to 8"),
        (Batching(max_batch_size=8, static_batch=4, for_gpus=("Z1",)), "No defaults for the GPU 'Z1'"),
        (Batching(max_batch_size=8, static_batch=4, gpus=(1, 1)), "expected different numbers"),
        (Batching(max_batch_size=8, static_batch=4, slo_ms=0), "objective is 0 ms"),
    ],
)
def test_mistakes_are_met_before_anything_is_built(batching: Batching, says: str) -> None:
    """Names and numbers are checked on a configuration without tensors, in no time."""
    with pytest.raises(InvalidInput, match=says):
        check_batching("m", batching)
