"""The script is valid bash, gives trtexec exactly the settings, and writes an engine whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tritonbatch.engine.settings import EngineSettings, Profile
from tritonbatch.engine.trtexec import arguments_of, trtexec_script

PLAIN = EngineSettings(
    onnx_file="model.fp16.onnx",
    precision="fp16",
    profiles=(Profile("x", (1, 64), (16, 64), (32, 64)), Profile("ids", (1, 8), (16, 32), (32, 128))),
)
ODD = EngineSettings(
    onnx_file="it's a model $(date).onnx",
    precision="int8",
    profiles=(Profile("yolonms_layer_1/ExpandDims_1:0", (1, 2), (2, 2), (4, 2)),),
    workspace_mib=512,
    version_compatible=True,
    hardware_compatible=True,
)

BASH = shutil.which("bash") or "/bin/bash"

FAKE = """#!/usr/bin/env bash
if [[ $1 == --help ]]; then echo '&&&& RUNNING TensorRT.trtexec [TensorRT v101303] FLAGS'; exit 0; fi
printf '%s\\0' "$@" >"$RECORD"
for each in "$@"; do case $each in --saveEngine=*) echo engine >"${each#--saveEngine=}";; esac; done
exit ${FAIL:-0}
"""


@pytest.fixture
def fake(tmp_path: Path) -> Path:
    """A folder with a trtexec that records its arguments and knows the flag for strong typing."""
    _write_fake(tmp_path, "--stronglyTyped")
    return tmp_path


def _write_fake(folder: Path, flags: str) -> None:
    path = folder / "fake-trtexec"
    path.write_text(FAKE.replace("FLAGS", flags))
    path.chmod(0o755)


def _run(folder: Path, settings: EngineSettings, **environment: str) -> subprocess.CompletedProcess[str]:
    script = folder / "the model" / "build_engine.sh"
    script.parent.mkdir(exist_ok=True)
    script.write_text(trtexec_script(settings))
    values = {"TRTEXEC": str(folder / "fake-trtexec"), "RECORD": str(folder / "record"), **environment}
    return subprocess.run(
        [BASH, str(script)], env={**os.environ, **values}, capture_output=True, text=True, check=False, timeout=30
    )


def _recorded(folder: Path) -> list[str]:
    return (folder / "record").read_text().split("\0")[:-1]


@pytest.mark.parametrize("settings", [PLAIN, ODD])
def test_the_script_is_valid_bash(settings: EngineSettings, tmp_path: Path) -> None:
    """`bash -n` reads it, whatever signs are in the names."""
    (tmp_path / "script.sh").write_text(trtexec_script(settings))
    subprocess.run([BASH, "-n", str(tmp_path / "script.sh")], check=True)


@pytest.mark.parametrize("settings", [PLAIN, ODD])
def test_trtexec_gets_exactly_the_settings(settings: EngineSettings, fake: Path) -> None:
    """Every argument arrives unchanged through the shell, and the engine gets its metadata beside it."""
    done = _run(fake, settings)
    assert done.returncode == 0, done.stderr
    save, *others = _recorded(fake)
    assert save.startswith("--saveEngine=model.plan.")
    assert others == ["--stronglyTyped", *arguments_of(settings)]
    folder = fake / "the model"
    assert sorted(path.name for path in folder.iterdir()) == ["build_engine.sh", "model.plan", "model.plan.json"]
    record = json.loads((folder / "model.plan.json").read_text())
    assert record["tensorrt"] == "TensorRT v101303"
    assert record["settings"] == json.loads(json.dumps(settings.as_record()))


def test_profiles_are_written_as_trtexec_reads_them() -> None:
    """Shapes are joined by x and inputs by commas; a name with a colon stands in single quotes."""
    assert "--minShapes=x:1x64,ids:1x8" in arguments_of(PLAIN)
    assert "--optShapes=x:16x64,ids:16x32" in arguments_of(PLAIN)
    assert "--maxShapes=x:32x64,ids:32x128" in arguments_of(PLAIN)
    assert "--optShapes='yolonms_layer_1/ExpandDims_1:0':2x2" in arguments_of(ODD)
    assert {"--versionCompatible", "--hardwareCompatibilityLevel=ampere+"} <= set(arguments_of(ODD))


def test_a_trtexec_that_lacks_the_flag_is_not_given_it(tmp_path: Path) -> None:
    """From TensorRT 11 on every network is strongly typed, so the flag is left out where help does not name it."""
    _write_fake(tmp_path, "")
    assert _run(tmp_path, PLAIN).returncode == 0
    assert "--stronglyTyped" not in _recorded(tmp_path)


def test_a_failed_build_leaves_the_engine_in_place(fake: Path) -> None:
    """When trtexec fails, the script fails, the engine before it stays, and no part of the new one is left."""
    assert _run(fake, PLAIN).returncode == 0
    plan = fake / "the model" / "model.plan"
    plan.write_text("the one before")
    assert _run(fake, PLAIN, FAIL="3").returncode == 3
    assert plan.read_text() == "the one before"
    assert len(list(plan.parent.glob("model.plan*"))) == 2


def test_a_missing_trtexec_is_explained(tmp_path: Path) -> None:
    """Outside the container the script says where to run it."""
    done = _run(tmp_path, PLAIN, TRTEXEC="no-trtexec-here")
    assert done.returncode == 2
    assert "there is no no-trtexec-here here; run this script in the container" in done.stderr


def test_the_image_follows_the_serving_release() -> None:
    """The image that builds is of the release that serves."""
    assert "nvcr.io/nvidia/tensorrt:26.03-py3" in trtexec_script(PLAIN, "26.03-py3")
