"""An engine is built where there is a GPU and TensorRT, and nowhere else is anything written.

TensorRT for RTX has the same builder and parser and needs no GPU to build, so the code that builds runs with it here.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tritonbatch.engine import build
from tritonbatch.engine.lower_precision import lower_precision
from tritonbatch.engine.settings import PRECISIONS, EngineSettings, Profile, profiles
from tritonbatch.errors import ExportRejected, NotSupported
from tritonbatch.export.build import build_named
from tritonbatch.repository.config import Instances, onnx_config

# Its timing cache does nothing, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:.*TensorRT-RTX:DeprecationWarning")

PROFILE = Profile("x", (1, 64), (16, 64), (32, 64))


@pytest.fixture
def version(exported_repository: Path) -> Path:
    """The version folder of the exported model."""
    return exported_repository / "layers" / "1"


@pytest.fixture(scope="session")
def rtx() -> Any:
    """TensorRT for RTX, whose builder works without a GPU."""
    return pytest.importorskip("tensorrt_rtx", reason="tensorrt-rtx-cu12 is not installed")


def _settings(precision: str = "fp32", **changes: Any) -> EngineSettings:
    name = "model.onnx" if precision == "fp32" else f"model.{precision}.onnx"
    return replace(EngineSettings(onnx_file=name, precision=precision, profiles=(PROFILE,)), **changes)


def _files(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def _fails(kind: type[Exception]) -> Any:
    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise kind("not here")

    return fail


def test_without_tensorrt_nothing_is_written(version: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing package is one sentence with the two ways out."""
    monkeypatch.setattr(build.importlib, "import_module", _fails(ModuleNotFoundError))
    before = _files(version)
    with pytest.raises(NotSupported, match=r"needs the package tensorrt.*tritonbatch\[gpu\].*--script"):
        build.build_engine(_settings(), version)
    assert _files(version) == before


@pytest.mark.parametrize("nvidia_smi", [None, "/bin/true", "/bin/false"])
def test_without_a_gpu_nothing_is_written(
    nvidia_smi: str | None, version: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No nvidia-smi, one that prints nothing and one that fails all mean that there is no GPU."""
    monkeypatch.setattr(build, "load_tensorrt", lambda: None)
    monkeypatch.setattr(build.shutil, "which", lambda _name: nvidia_smi)
    before = _files(version)
    with pytest.raises(NotSupported, match=r"needs an NVIDIA GPU.*--script"):
        build.build_engine(_settings(), version)
    assert _files(version) == before


def test_the_device_is_the_first_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Name, driver and compute capability come from nvidia-smi's first line."""
    fake = tmp_path / "nvidia-smi"
    fake.write_text("#!/bin/sh\necho 'NVIDIA L4, 580.65.06, 8.9'\necho 'NVIDIA T4, 580.65.06, 7.5'\n")
    fake.chmod(0o755)
    monkeypatch.setattr(build.shutil, "which", lambda _name: str(fake))
    assert build.device_here() == build.Device("NVIDIA L4", "580.65.06", "8.9")


@pytest.mark.parametrize("precision", PRECISIONS)
def test_every_precision_is_built(precision: str, version: Path, rtx: Any) -> None:
    """The parser takes each lowered graph, the profile is accepted, and an engine comes out."""
    lower_precision(version, precision)
    plan, cache = build.serialized(rtx, _settings(precision), version)
    assert len(plan) > 1000
    assert isinstance(cache, bytes)


def test_metadata_says_where_an_engine_was_built(version: Path, rtx: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engine, timing cache and a record of GPU, driver, version, model and profile are written together."""
    monkeypatch.setattr(build, "load_tensorrt", lambda: rtx)
    monkeypatch.setattr(build, "device_here", lambda: build.Device("NVIDIA L4", "580.65.06", "8.9"))
    settings = _settings()
    path = build.build_engine(settings, version)
    assert path == version / "model.plan"
    record = json.loads((version / "model.plan.json").read_text())
    assert (record["gpu"], record["driver"], record["tensorrt"]) == ("NVIDIA L4", "580.65.06", rtx.__version__)
    assert record["onnx_sha256"] == hashlib.sha256((version / "model.onnx").read_bytes()).hexdigest()
    assert record["settings"]["profiles"][0] == {
        "name": "x",
        "smallest": [1, 64],
        "usual": [16, 64],
        "largest": [32, 64],
    }
    assert not [each for each in version.iterdir() if each.name.startswith(".")]


@pytest.mark.parametrize(
    ("profile", "words"),
    [
        (Profile("z", (1, 64), (16, 64), (32, 64)), "has no input 'z'.*expected one of x"),
        (Profile("x", (1, 64), (64, 64), (32, 64)), "refuses the profile|cannot build"),
        (Profile("x", (1, 63), (16, 63), (32, 63)), "cannot build model.onnx for these profiles"),
    ],
)
def test_a_profile_that_does_not_fit_is_rejected(profile: Profile, words: str, version: Path, rtx: Any) -> None:
    """An unknown input, sizes that fall and a wrong fixed size are rejected with TensorRT's reason."""
    with pytest.raises(ExportRejected, match=words):
        build.serialized(rtx, _settings(profiles=(profile,)), version)


def test_a_graph_that_tensorrt_cannot_read_is_rejected(version: Path, rtx: Any) -> None:
    """The parser's own reason is in the sentence, and nothing is printed by its logger."""
    (version / "broken.onnx").write_bytes(b"no graph")
    with pytest.raises(ExportRejected, match=r"cannot read broken\.onnx"):
        build.serialized(rtx, _settings(onnx_file="broken.onnx"), version)


@pytest.mark.parametrize("name", ["convnet", "decoder_step"])
def test_built_in_architectures_are_built(name: str, tmp_path: Path, rtx: Any) -> None:
    """Convolutions and a cache of free length, in every precision, are taken for their profiles."""
    built = build_named(name, tmp_path / name, max_batch_size=8)
    config = onnx_config(name, built.inputs, built.outputs, max_batch_size=8, instances=Instances())
    for precision in PRECISIONS:
        lowered = lower_precision(built.path.parent, precision)
        settings = EngineSettings(
            onnx_file=lowered.path.name, precision=precision, profiles=profiles(config, {"": (0, 32, 96)})
        )
        assert build.serialized(rtx, settings, built.path.parent)[0]
