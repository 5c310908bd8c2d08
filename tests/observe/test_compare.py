"""A comparison on the real server, from start to what it showed, and folders that are not what they should be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import psutil
import pytest

from tritonbatch.errors import InvalidInput, ServerFailed
from tritonbatch.loadtest.compare import Subject, Traffic, compare, loads_of
from tritonbatch.loadtest.folder import run_folder
from tritonbatch.loadtest.records import read_records
from tritonbatch.loadtest.serving import check_served, embedded, running
from tritonbatch.observe.measurement import service_curve
from tritonbatch.observe.read import read_comparison
from tritonbatch.repository.layout import variant_config
from tritonbatch.repository.variants import caller_batch
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton


def ignore(what: str, done: int, total: int) -> None:
    """Nobody looks at the progress."""


@pytest.fixture(scope="module")
def folder(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The three variants of `linear` under one given rate."""
    target = tmp_path_factory.mktemp("comparison") / "run"
    subject = Subject(model="linear", samples=repository / "linear" / "samples.npz")
    traffic = Traffic(rates_per_s=[300.0], seconds=1.0, seed=9)
    steps: list[str] = []
    serving = embedded(repository, ["linear"], "http")
    compare(target, serving, [subject], ["serial", "static", "dynamic"], traffic, lambda what, *_: steps.append(what))
    assert {step.partition(":")[0] for step in steps} == {"serial", "static", "dynamic"}
    return target


def test_every_variant_met_the_same_arrivals(folder: Path) -> None:
    """Three measurements in the order asked for, with equal intended starts and the batches that each allows."""
    comparison = read_comparison(folder)
    assert [m.variant for m in comparison.measurements] == ["serial", "static", "dynamic"]
    assert len({records.intended_ns.tobytes() for records in comparison.records.values()}) == 1
    serial, static, dynamic = comparison.measurements
    assert [m.failed for m in comparison.measurements] == [0, 0, 0]
    assert [e.batch_size for e in serial.executions] == [1]
    assert [e.batch_size for e in static.executions] == [4]
    assert (serial.max_batch_size, static.max_batch_size, dynamic.max_batch_size) == (1, 4, 8)
    assert (serial.scheduler, static.scheduler, dynamic.scheduler) == ("default", "default", "dynamic")
    assert serial.load.rate_per_s == 300
    assert set(service_curve(comparison.measurements)) >= {1, 4}


def test_any_variants_can_be_compared(repository: Path, tmp_path: Path) -> None:
    """Without a static or a dynamic variant loads are chosen all the same; the batch follows the name."""
    subject = Subject(model="linear")
    compare(tmp_path, embedded(repository, ["linear"], "http"), [subject], ["serial"], Traffic(seconds=0.5), ignore)
    steady, saturating = read_comparison(tmp_path).measurements
    assert (steady.load.name, saturating.load.name) == ("steady", "saturating")
    assert caller_batch("static-4", 8) == 4
    assert caller_batch("offline", 8) == caller_batch("static", 8) == 8
    assert caller_batch("online", 8) == caller_batch("served", 8) == 1


def test_the_configuration_as_served_is_kept(folder: Path) -> None:
    """The manifest has the server's own answer for each variant, its version, the machine and the seed."""
    manifest = read_comparison(folder).manifest
    assert manifest["complete"] is True
    assert manifest["seed"] == 9
    assert manifest["server"]["version"] == "2.51.0"
    assert "max_batch_size: 1\n" in manifest["configuration as served"]["linear serial"]
    assert "dynamic_batching" in manifest["configuration as served"]["linear dynamic"]
    assert {"cores", "processor", "python", "system"} <= set(manifest["machine"])


def test_a_running_server_is_driven_as_it_is(server: EmbeddedServer, tmp_path: Path) -> None:
    """Without control over the server: single requests to it as served, and static batches beside them."""
    subject = Subject(model="linear")
    traffic = Traffic(rates_per_s=[100.0], seconds=0.5, protocol="grpc")
    compare(tmp_path, running(server.grpc_url, "grpc"), [subject], ["static-4", "served"], traffic, ignore)
    static, served = read_comparison(tmp_path).measurements
    assert (static.variant, served.variant) == ("static-4", "served")
    assert [e.batch_size for e in static.executions] == [4]
    assert served.scheduler == "dynamic"


def test_a_baseline_that_the_server_completed_is_refused(repository: Path) -> None:
    """A served configuration with another scheduler or batch limit than its file is not measured under that name."""
    written = variant_config(repository, "linear", "static")
    check_served(written, written)
    completed = variant_config(repository, "linear", "static")
    completed.dynamic_batching.SetInParent()
    with pytest.raises(ServerFailed, match="linear with scheduler dynamic, its configuration says default"):
        check_served(written, completed)
    with pytest.raises(ServerFailed, match="linear with max_batch_size 1, its configuration says 4"):
        check_served(written, variant_config(repository, "linear", "serial"))


def test_a_server_that_dies_under_load_is_named(repository: Path, tmp_path: Path) -> None:
    """Killed in the middle of a run, the server's end is the error, and what was recorded until then is kept."""
    subject = Subject(model="linear")

    def kill(what: str, done: int, total: int) -> None:
        if 0 < done < total:
            for process in psutil.Process().children(recursive=True):
                if (
                    process.name() == "tritonserver" and "--load-model=linear" in process.cmdline()
                ):  # not the shared one
                    process.kill()

    serving = embedded(repository, ["linear"], "http")
    traffic = Traffic(rates_per_s=[50.0], seconds=3.0)
    with pytest.raises(ServerFailed, match="stopped by itself"):
        compare(tmp_path, serving, [subject], ["dynamic"], traffic, kill)
    records = read_records(run_folder(tmp_path, "linear", "50/s", "dynamic") / "records.parquet")
    assert 0 < np.count_nonzero(records.status == 1) < len(records) == 150


def test_a_folder_with_a_comparison_is_not_overwritten(folder: Path) -> None:
    """Measuring into a folder that holds a comparison is refused."""
    with pytest.raises(InvalidInput, match="already holds a comparison"):
        compare(folder, running("localhost:1", "http"), [], [], Traffic(), ignore)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    """A copy of the comparison, to be damaged."""
    return Path(shutil.copytree(folder, tmp_path / "copy"))


def test_what_finished_is_read_when_the_rest_is_missing(copy: Path) -> None:
    """An interrupted comparison shows its finished runs and says that it is not complete."""
    (run_folder(copy, "linear", "300/s", "dynamic") / "server.json").unlink()
    manifest = json.loads((copy / "manifest.json").read_text())
    (copy / "manifest.json").write_text(json.dumps({**manifest, "complete": False}))
    comparison = read_comparison(copy)
    assert [m.variant for m in comparison.measurements] == ["serial", "static"]
    assert not comparison.manifest["complete"]


@pytest.mark.parametrize(
    ("file", "content", "says"),
    [
        ("manifest.json", "", "manifest.json"),
        ("manifest.json", "[]", "holds a list: expected a JSON object"),
        ("runs/linear/300%2Fs/serial/server.json", "{}", "is damaged"),
        ("runs/linear/300%2Fs/serial/records.json", "{}", "is damaged"),
        ("runs/linear/300%2Fs/serial/records.json", '{"load"', "records.json"),
        ("runs/linear/300%2Fs/serial/records.parquet", "PAR1", "Cannot read records"),
    ],
)
def test_damaged_files_are_named(copy: Path, file: str, content: str, says: str) -> None:
    """A truncated or foreign file is one sentence with its path, not a traceback."""
    (copy / file).write_text(content)
    with pytest.raises(InvalidInput, match=says):
        read_comparison(copy)


def test_a_folder_without_runs_says_what_to_do(tmp_path: Path) -> None:
    """A folder that is no comparison, or has no finished run, is a mistake with a next step."""
    with pytest.raises(InvalidInput, match=r"manifest\.json"):
        read_comparison(tmp_path)
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InvalidInput, match="no finished run"):
        read_comparison(tmp_path)


def test_a_comparison_is_repeated_with_its_own_loads(folder: Path, repository: Path, tmp_path: Path) -> None:
    """The second time the same arrivals are played in the order given, so that repeats can be interleaved."""
    subject = Subject(model="linear", samples=repository / "linear" / "samples.npz")
    traffic = Traffic(seconds=1.0, seed=9, loads=loads_of(folder))
    steps: list[str] = []
    serving = embedded(repository, ["linear"], "http")
    compare(tmp_path / "again", serving, [subject], ["serial", "dynamic"], traffic, lambda what, *_: steps.append(what))
    first, again = read_comparison(folder), read_comparison(tmp_path / "again")
    for variant in ("serial", "dynamic"):
        key = ("linear", "300/s", variant)
        np.testing.assert_array_equal(again.records[key].intended_ns, first.records[key].intended_ns)
    assert [step.partition(":")[0] for step in steps if "starting" in step] == ["serial", "dynamic"]
