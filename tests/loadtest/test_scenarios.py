"""Every scenario runs from plain Locust against the real server, shortened by the command line alone."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tritonbatch.loadtest.generator import scenario
from tritonbatch.loadtest.records import OK, read_records
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

SCENARIOS = sorted(path.stem for path in scenario("online").parent.glob("*.py"))
SHORT = {
    "online": ["--pattern=poisson:rate=50,seconds=1"],
    "offline": ["--pattern=closed:users=2,seconds=1", "--client-batch=8"],
    "mixed_priority": ["--pattern=poisson:rate=100,seconds=1"],
    "mixed_two_instances": ["--pattern=poisson:rate=100,seconds=1"],
    "burst": ["--pattern=onoff:rate=200,on=0.2,off=0.3,seconds=1"],
    "soak": ["--pattern=poisson:rate=50,seconds=1"],
    "open_loop": ["--rate=100", "--requests=100"],
    "sweep": ["--pattern=step:rates=50/100,seconds=1"],
}


def run(name: str, server: EmbeddedServer, folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run the scenario for the model `linear` and leave its records in *folder*."""
    command = [sys.executable, "-m", "locust", "-f", str(scenario(name)), "--headless", "-u", "1", "--model=linear"]
    command += [f"--host={server.http_url}", f"--records={folder / 'records.parquet'}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_every_scenario_is_known_here() -> None:
    """A scenario that is added is run by these tests."""
    assert set(SCENARIOS) == {*SHORT, "compare"}


@pytest.mark.parametrize("name", [name for name in SHORT if name != "sweep"])
def test_a_scenario_leaves_records_that_are_complete(server: EmbeddedServer, tmp_path: Path, name: str) -> None:
    """It ends with 0, every request was answered, and its classes and sizes are those that it promises."""
    result = run(name, server, tmp_path, *SHORT[name])
    assert result.returncode == 0, result.stderr
    records = read_records(tmp_path)
    assert (records.status == OK).all()
    assert json.loads((tmp_path / "records.json").read_text())["complete"]
    if name.startswith("mixed"):
        assert set(records.priority.tolist()) == {1, 2}
        bulk = 8 if name == "mixed_two_instances" else 1
        assert set(records.rows[records.priority == 2].tolist()) == {bulk}
        assert set(records.rows[records.priority == 1].tolist()) == {1}
    if name == "offline":
        assert set(records.batch.tolist()) == {8}


def test_the_sweep_has_a_step_for_every_size(server: EmbeddedServer, tmp_path: Path) -> None:
    """Sizes 1, 2, 4 and 8 of a model with max_batch_size 8, and the rates; in one process only."""
    text = scenario("sweep").read_text().replace("SECONDS = 5", "SECONDS = 0.3")
    (tmp_path / "sweep.py").write_text(text)
    command = [sys.executable, "-m", "locust", "-f", str(tmp_path / "sweep.py"), "--headless", "--model=linear"]
    command += ["-u", "1", f"--host={server.http_url}", f"--records={tmp_path / 'records.parquet'}", *SHORT["sweep"]]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    for size in (1, 2, 4, 8):
        records = read_records(tmp_path / f"records-batch-{size}.parquet")
        assert set(records.batch.tolist()) == {size}
        assert (records.status == OK).all()
    assert len(read_records(tmp_path / "records-rates.parquet")) > 30


def test_compare_plays_the_same_arrivals_everywhere(server: EmbeddedServer, tmp_path: Path) -> None:
    """Two targets get the same arrivals of the same seed; the second in full batches of 4."""
    targets = f"--targets=dynamic={server.http_url},static={server.http_url}/4"
    result = run("compare", server, tmp_path, targets, "--pattern=poisson:rate=100,seconds=1")
    assert result.returncode == 0, result.stderr
    single, full = (read_records(tmp_path / f"records-{name}.parquet") for name in ("dynamic", "static"))
    np.testing.assert_array_equal(single.intended_ns, full.intended_ns)
    assert (single.variant, full.variant) == ("dynamic", "static")
    assert (set(single.batch.tolist()), set(full.batch.tolist())) == ({1}, {4})


@pytest.mark.parametrize(
    ("name", "flags", "says"),
    [
        ("compare", [], "expected --targets"),
        ("compare", ["--targets=nowhere"], "expected NAME=HOST:PORT"),
        ("online", ["--pattern=poisson:rate=0,seconds=1"], "expected a number above 0"),
        ("offline", ["--client-batch=64"], "max_batch_size"),
        ("online", ["--mix=1:0.5", "--client-batch=2"], "without --mix"),
    ],
)
def test_a_mistake_is_one_sentence(
    server: EmbeddedServer, tmp_path: Path, name: str, flags: list[str], says: str
) -> None:
    """Exit code 2 and what was expected; no traceback."""
    result = run(name, server, tmp_path, *flags)
    assert result.returncode == 2
    assert says in result.stderr
    assert "Traceback" not in result.stderr
