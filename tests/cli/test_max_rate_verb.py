"""`tritonbatch max-rate`: the search on simulated measurements, and the verb on the real server."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import typer
from rich.console import Console
from typer.testing import CliRunner, Result

from tritonbatch.cli import max_rate as verb
from tritonbatch.errors import InvalidInput, TritonbatchError
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import OK, STATUSES, Records
from tritonbatch.observe.judge import judge
from tritonbatch.observe.max_rate import search
from tritonbatch.observe.slo import slo
from tritonbatch.server import EmbeddedServer

SLO = "p99=20ms,errors=1%"


def run(*arguments: str | Path) -> Result:
    """Run the verb alone."""
    app = typer.Typer()
    app.command()(verb.max_rate)
    return CliRunner(env={"COLUMNS": "200"}).invoke(app, [str(argument) for argument in arguments])


def simulated(failing: float = 0.0, lag_ms: float = 0.0) -> Callable[[float, int], verb.Measured]:
    """Measurements of M/D/1 with a service time of 1 ms, of whose requests the share *failing* fails."""

    def measure(rate_per_s: float, number: int) -> verb.Measured:
        rng, count = np.random.default_rng(number), 6000
        arrived = np.cumsum(rng.exponential(1e9 / rate_per_s, count)).astype(np.int64)
        served = 1_000_000 * np.arange(count)
        records = Records("run", "model", "served", arrived)
        records.sent_ns = arrived.copy()
        records.done_ns = np.maximum.accumulate(arrived - served) + served + 1_000_000
        records.status[:] = np.where(rng.random(count) < failing, STATUSES.index("failed"), OK)
        load = Load(name="l", rate_per_s=rate_per_s, requests=count, seed=number)
        return verb.Measured(load, judge(records, slo(SLO)), lag_ms)

    return measure


def test_the_capacity_of_a_queue_is_found() -> None:
    """M/D/1 of 1,000/s keeps a p99 of 20 ms until it is nearly full; a line per measurement, a sentence last."""
    console = Console(record=True, width=300)
    found, measured = verb._searched(100, simulated(), console)
    assert found.met_per_s is not None
    assert found.missed_per_s is not None
    assert 600 < found.met_per_s < found.missed_per_s < 1200
    lines = [line for line in console.export_text().splitlines() if line.strip()]
    assert len(lines) == len(measured) <= 12
    assert all("failed" in line and "/s " in line for line in lines)
    sentence = verb.final_sentence("m", SLO, found, measured)
    assert sentence.startswith(f"m meets {SLO} up to ")
    assert json.dumps(verb.as_json("m", SLO, found, measured), allow_nan=False)


def test_failures_miss_the_objective_and_are_counted() -> None:
    """A server that fails one request in ten meets nothing; every line says how many failed."""
    console = Console(record=True, width=300)
    found, measured = verb._searched(100, simulated(failing=0.1), console)
    assert found.met_per_s is None
    assert all(each.judgement.checks[0].failed > 0 for each in measured)
    assert "does not meet" in verb.final_sentence("m", SLO, found, measured)


def test_a_late_generator_is_said() -> None:
    """A lag of the generator that matters against the limit stands in the line."""
    assert "generator itself was 5 ms late" in verb.line(simulated(lag_ms=5.0)(100, 1)).plain
    assert "late" not in verb.line(simulated(lag_ms=0.5)(100, 1)).plain
    found, measured = verb._searched(100, simulated(lag_ms=5.0), Console(quiet=True))
    assert "the server may carry more" in verb.final_sentence("m", SLO, found, measured)


@pytest.mark.parametrize(
    ("wanted", "needed", "requests"), [(1000, 900, 1000), (500.2, 900, 900), (100, 900, 800), (0.3, 0, 1)]
)
def test_a_measurement_lasts_as_long_as_its_verdict_needs(wanted: float, needed: int, requests: int) -> None:
    """As long as asked for, longer for an objective that takes more requests, at most 8 times as long."""
    assert verb.requests_of(wanted, needed) == requests


@pytest.mark.triton
def test_a_real_server_is_searched(server: EmbeddedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two measurements on the real server: records of each, the whole JSON, the sentence, exit code 0."""
    monkeypatch.setattr(verb, "search", partial(search, most=2))
    folder = tmp_path / "out"
    result = run(
        *("--url", server.http_url, "--model", "linear", "--slo", "p50=10s,errors=20%"),
        *("--rate-from", "100", "--seconds", "1", "--output", folder),
    )
    assert result.exit_code == 0, result.output
    assert "linear meets p50=10s,errors=20% at 200/s" in result.output
    found = json.loads((folder / "max_rate.json").read_text())
    assert (found["met_per_s"], found["missed_per_s"], found["confirmed"]) == (200, None, False)
    assert [each["judgement"]["outcome"] for each in found["measurements"]] == ["met", "met"]
    assert sorted(path.name for path in folder.iterdir()) == ["01", "02", "max_rate.json"]
    assert (folder / "02" / "records.json").exists()
    again = run("--url", server.http_url, "--model", "linear", "--slo", "p50=10s", "--output", folder)
    assert isinstance(again.exception, InvalidInput)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--url", "localhost:9", "--model", "m", "--slo", "p99=1ms"], "No Triton is ready at localhost:9"),
        (["--url", "localhost:9", "--model", "m", "--slo", "fast"], "Cannot read 'fast'"),
        (["--url", "localhost:9", "--model", "m", "--slo", "p99=1ms", "--protocol", "ftp"], "expected http or grpc"),
        (["--url", "localhost:9", "--model", "m", "--slo", "p99=1ms", "--seconds", "0"], "duration is 0"),
        (["--url", "localhost:9", "--model", "m", "--slo", "p99=1ms", "--rate-from", "-5"], "rate is -5"),
        (["--url", "localhost:9", "--model", "m", "--slo", "p99=1ms", "--rate-from", "0"], "rate is 0"),
        (["--url", "localhost:9", "--model", "m", "--slo", "p99=1ms", "--seed", "-1"], "seed is -1"),
    ],
)
def test_a_mistake_is_one_sentence(arguments: list[str], says: str) -> None:
    """Each raises an error with exit code 2, before anything is written."""
    error = run(*arguments).exception
    assert isinstance(error, TritonbatchError)
    assert says in str(error)
    assert error.exit_code == 2
