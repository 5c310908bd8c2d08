"""The same job on a local Ray cluster: the same file, the same way to go on, and a sentence where Ray is missing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

Floats = npt.NDArray[np.float32]
Start = Callable[[Sequence[str], Path], subprocess.Popen[str]]
Batch = Callable[[Sequence[str], Path], tuple[int, str]]
Wait = Callable[[subprocess.Popen[str], Path, int], None]


def test_ray_makes_the_same_file(server: EmbeddedServer, run_batch: Batch, inputs: Path) -> None:
    """Both engines write the same bytes."""
    pytest.importorskip("ray")
    arguments = ["--model", "linear", "--batch", "8", "--url", server.http_url]
    code, said = run_batch(["jsonl_parts", "ray.parquet", *arguments, "--engine", "ray"], inputs)
    assert code == 0, said
    assert "163 batches at " in said
    assert "1300 of 1300 rows are in ray.parquet" in said
    assert run_batch(["jsonl_parts", "local.parquet", *arguments], inputs)[0] == 0
    assert (inputs / "ray.parquet").read_bytes() == (inputs / "local.parquet").read_bytes()


def test_a_killed_ray_job_goes_on_with_the_local_engine(
    server: EmbeddedServer,
    start_batch: Start,
    wait_for_parts: Wait,
    floats: Callable[[int], Floats],
    weights: Floats,
    tmp_path: Path,
) -> None:
    """What the workers finished before SIGKILL is kept, and the output has every row once and in order."""
    pytest.importorskip("ray")
    x = floats(8192)
    np.save(tmp_path / "x.npy", x)
    arguments = ["x.npy", "y.npy", "--model", "linear", "--batch", "4", "--url", server.http_url]
    process = start_batch([*arguments, "--engine", "ray"], tmp_path)
    wait_for_parts(process, tmp_path / "y.npy", 2)
    process.kill()
    process.wait(10)
    said, _ = start_batch(arguments, tmp_path).communicate(timeout=60)
    assert "rows are done already" in said
    assert "8192 of 8192 rows are in y.npy" in said
    np.testing.assert_allclose(np.load(tmp_path / "y.npy"), x @ weights, rtol=1e-5)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy", "y.npy"]


def test_without_ray_a_sentence_says_what_to_install(server: EmbeddedServer, inputs: Path) -> None:
    """The engine is an extra: where it is missing, the exit code is 2 and nothing is begun."""
    arguments = ["batch", "rows.npy", "y.npy", "--model", "linear", "--batch", "8", "--url", server.http_url]
    code = (
        "import sys; sys.modules['ray'] = None\n"
        f"sys.argv = ['tritonbatch', *{arguments!r}, '--engine', 'ray']\n"
        "from tritonbatch.cli.main import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=inputs, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert "needs Ray Data, which is not installed: pip install 'tritonbatch[ray]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (inputs / "y.npy.parts").exists()
