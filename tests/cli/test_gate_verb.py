"""`tritonbatch gate` on folders of records: what it prints, what it writes, how it exits."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner, Result

from tritonbatch.cli.gate import gate
from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.records import OK, STATUSES, Records, write_records


def run(*arguments: str | Path) -> Result:
    """Run the verb alone."""
    app = typer.Typer()
    app.command()(gate)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


def write_run(folder: Path, seed: int, slower: float = 1.0, failed: int = 0, rate_per_s: float = 200) -> None:
    """A run of 600 requests around 10 ms with 2 % noise from run to run, of which the first *failed* failed."""
    rng = np.random.default_rng(seed)
    intended = np.cumsum(rng.exponential(1e9 / 200, 600)).astype(np.int64)
    records = Records("run", "ranker", "dynamic", intended)
    latency_ms = 10 * slower * rng.lognormal(0, 0.02) * rng.lognormal(0, 0.2, 600)
    records.sent_ns, records.done_ns = intended.copy(), intended + (latency_ms * 1e6).astype(np.int64)
    records.status[:] = OK
    records.status[:failed] = STATUSES.index("failed")
    folder.mkdir(parents=True)
    write_records(records, folder / "records.parquet")
    (folder / "records.json").write_text(json.dumps({"rate_per_s": rate_per_s, "loop": "open", "complete": True}))


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders `main` and `same` (five repeats each), `slow` (20 % slower), `broken` (5 % fail), and a baseline."""
    folder = tmp_path_factory.mktemp("runs")
    for number, (name, slower, failed) in enumerate(
        [("main", 1.0, 0), ("same", 1.0, 0), ("slow", 1.2, 0), ("broken", 1.0, 30)]
    ):
        for repeat in range(5):
            write_run(folder / name / str(repeat), 100 * number + repeat, slower, failed)
    write_run(folder / "faster", 1, rate_per_s=400)
    assert run(folder / "main", "--save-baseline", folder / "baseline.json").exit_code == 0
    return folder


@pytest.mark.parametrize(
    ("name", "exit_code", "says"),
    [
        ("same", 0, "The gate passes"),
        ("slow", 1, "p50 latency (regression)"),
        ("broken", 1, "failures (regression)"),
    ],
)
def test_the_exit_code_is_the_gate(runs: Path, name: str, exit_code: int, says: str) -> None:
    """0 for an unchanged rerun; 1 for a slowdown and for failures; the last line says why."""
    result = run(runs / name, "--baseline", runs / "baseline.json")
    assert result.exit_code == exit_code, result.output
    assert says in result.output.splitlines()[-1]


@pytest.mark.parametrize(
    ("options", "exit_code", "says"),
    [
        (["--slo", "p99=100ms"], 0, "met"),
        (["--slo", "p99=5ms"], 1, "p99=5ms (missed)"),
        (["--slo", "p99.99=100ms"], 0, "undecided: p99.99=100ms"),
        (["--min-rate", "100"], 0, "met"),
        (["--min-rate", "1000"], 1, "throughput of at least 1000/s (missed)"),
    ],
)
def test_objectives_need_no_baseline(runs: Path, options: list[str], exit_code: int, says: str) -> None:
    """Objectives alone decide; what is undecided is said and passes."""
    result = run(runs / "same", *options)
    assert result.exit_code == exit_code, result.output
    assert says in result.output


def test_every_file_says_the_same(runs: Path, tmp_path: Path) -> None:
    """JUnit, JSON and Markdown are written whole also when the gate fails, into folders that did not exist."""
    files = {kind: tmp_path / "out" / f"gate.{kind}" for kind in ("junit", "json", "markdown")}
    flags = [text for kind, path in files.items() for text in (f"--{kind}", str(path))]
    assert run(runs / "slow", "--baseline", runs / "baseline.json", "--slo", "p99=100ms", *flags).exit_code == 1
    suite = ET.parse(files["junit"]).getroot()  # noqa: S314 - written here
    found = json.loads(files["json"].read_text())
    assert found["passed"] is False
    assert suite.get("failures") == str(sum(f["outcome"] in {"regression", "missed"} for f in found["findings"]))
    assert "failed 0 of 3,000, then 0 of 3,000" in files["markdown"].read_text()
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["gate.json", "gate.junit", "gate.markdown"]


def test_single_runs_are_said_to_be_single(runs: Path, tmp_path: Path) -> None:
    """With one run on each side the noise between repeats is unknown, which the output says."""
    assert run(runs / "main" / "0", "--save-baseline", tmp_path / "one.json").exit_code == 0
    assert "noise between repeats is unknown" in run(runs / "same" / "0", "--baseline", tmp_path / "one.json").output


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["main"], "nothing to do"),
        (["nowhere", "--slo", "p99=1ms"], "No records in"),
        (["main", "--baseline", "missing.json"], "Cannot read"),
        (["faster", "--baseline", "baseline.json"], "200/s arrive in one and 400/s in the other"),
        (["main", "--slo", "fast"], "Cannot read 'fast'"),
        (["main", "--min-rate", "0"], "--min-rate is 0"),
        (["main", "--slo", "p99=1ms", "--min-effect", "-1"], "--min-effect is -1"),
    ],
)
def test_a_mistake_is_one_sentence(
    runs: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], says: str
) -> None:
    """Each raises InvalidInput, which the command line turns into exit code 2."""
    monkeypatch.chdir(runs)
    error = run(*arguments).exception
    assert isinstance(error, InvalidInput)
    assert says in str(error)
    assert error.exit_code == 2
