"""The gate against synthetic run sets with realistic noise between repeats, and its files."""

from __future__ import annotations

import json
import math
import xml.etree.ElementTree as ET
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.records import OK, STATUSES, Records, write_records
from tritonbatch.observe.baseline import Run, RunSummary, read_baseline, read_runs, summary, write_baseline
from tritonbatch.observe.confidence import Figure, Interval
from tritonbatch.observe.gate import Result, changes, classify, notes, objective_finding, rate_finding
from tritonbatch.observe.gate_output import junit, markdown, plain
from tritonbatch.observe.judge import check, judge
from tritonbatch.observe.slo import slo

REQUESTS = 1500
FAILED = STATUSES.index("failed")


def records(seed: int, slower: float = 1.0, failed: float = 0.0, model: str = "ranker") -> Records:
    """A run at 300/s: latencies around 10 ms that resemble their neighbours, and 3 % noise from run to run."""
    rng = np.random.default_rng(seed)
    intended = np.cumsum(rng.exponential(1e9 / 300, REQUESTS)).astype(np.int64)
    memory = np.convolve(rng.normal(size=REQUESTS + 50), 0.7 ** np.arange(50))[50 : REQUESTS + 50]
    latency_ms = 10 * slower * rng.lognormal(0, 0.03) * np.exp(0.2 * memory)
    run = Records("run", model, "dynamic", intended)
    run.sent_ns, run.done_ns = intended.copy(), intended + (latency_ms * 1e6).astype(np.int64)
    run.status[:] = np.where(rng.random(REQUESTS) < failed, FAILED, OK)
    return run


def repeats(seed: int, slower: float = 1.0, failed: float = 0.0, count: int = 5) -> list[RunSummary]:
    """Summaries of *count* repeats."""
    facts = {"model": "ranker", "variant": "dynamic"}
    seeds = range(100 * seed, 100 * seed + count)
    return [summary(Run(f"run-{each}", records(each, slower, failed), facts)) for each in seeds]


@pytest.fixture(scope="module")
def baseline() -> list[RunSummary]:
    """Five repeats to compare with."""
    return repeats(0)


def test_ten_unchanged_reruns_pass(baseline: list[RunSummary]) -> None:
    """Ten sets of five repeats of the same thing: no gate fails."""
    results = [Result(tuple(changes(baseline, repeats(seed))), ()) for seed in range(2, 12)]
    assert [result.sentence for result in results if not result.passed] == []


def test_ten_slowdowns_of_a_tenth_are_caught(baseline: list[RunSummary]) -> None:
    """Ten sets of five repeats with latencies 10 % longer: every gate fails, on latency, and says how many failed."""
    for seed in range(12, 22):
        result = Result(tuple(changes(baseline, repeats(seed, slower=1.1))), ())
        regressions = [finding for finding in result.findings if finding.outcome == "regression"]
        assert any("latency" in finding.name for finding in regressions), result.sentence
        assert not result.passed
        assert "fails" in result.sentence
        assert all("failed 0 of 7,500, then 0 of 7,500" in finding.sentence for finding in result.findings)


@pytest.mark.parametrize(("slower", "least", "most"), [(1.0, 0.0, 0.03), (1.1, 0.92, 1.0)])
def test_the_gate_is_right_as_often_as_its_repeats_allow(slower: float, least: float, most: float) -> None:
    """Of 200 pairs of five repeats with 3 % run noise at most 3 % fail unchanged, and 92 % fail when 10 % slower."""
    rng, within = np.random.default_rng(11), np.array([0.014, 0.02, 0.033])

    def side(level: float) -> list[RunSummary]:
        values = level + rng.normal(0, 0.03, (5, 1)) + rng.normal(size=(5, 3)) * within
        return [bare_run(dict(zip(("p50", "p95", "p99"), map(Figure, row, within), strict=True))) for row in values]

    pairs = [changes(side(0.0), side(math.log(slower))) for _ in range(200)]
    share = sum(any(finding.fails for finding in found) for found in pairs) / len(pairs)
    assert least <= share <= most


def bare_run(latency: dict[str, Figure]) -> RunSummary:
    """A run of 1,000 successful requests at 300/s with the figures given."""
    return RunSummary(
        name="r", requests=1000, failed=0, latency=latency, throughput=Figure(math.log(300), 0.01), sketch={}, facts={}
    )


def test_a_speed_up_passes_and_is_named(baseline: list[RunSummary]) -> None:
    """Latencies 20 % shorter are improvements."""
    result = Result(tuple(changes(baseline, repeats(30, slower=0.8))), ())
    assert result.passed
    assert {f.name for f in result.findings if f.outcome == "improved"} >= {"p50 latency", "p95 latency"}


def test_failures_fail_the_gate_however_fast_the_rest_is(baseline: list[RunSummary]) -> None:
    """Two in a hundred requests failing is a regression, though the latency of the others improved."""
    result = Result(tuple(changes(baseline, repeats(31, slower=0.8, failed=0.02))), ())
    assert [finding.name for finding in result.findings if finding.fails] == ["failures"]


def test_a_run_without_any_success_fails_the_gate(baseline: list[RunSummary]) -> None:
    """There is no latency to compare, and the failures are the regression; its throughput misses any rate."""
    dead = repeats(32, failed=1.1, count=2)
    result = Result(tuple(changes(baseline, dead)), ())
    assert [finding.name for finding in result.findings if finding.fails] == ["failures"]
    assert all("failed" in finding.sentence for finding in result.findings)
    assert rate_finding(dead, 1).outcome == "missed"
    assert json.dumps(plain(result, "s"), allow_nan=False)


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ((0.10, 0.06, 0.14), "regression"),
        ((0.04, 0.02, 0.06), "unchanged"),
        ((0.10, -0.02, 0.22), "undecided"),
        ((0.00, -0.04, 0.04), "unchanged"),
        ((-0.10, -0.14, -0.06), "improved"),
        ((-0.01, -0.08, 0.06), "unchanged"),
        ((0.06, 0.0, 0.12), "undecided"),
    ],
)
@pytest.mark.parametrize("worse", [1, -1])
def test_a_change_is_classified_by_interval_and_size(
    interval: tuple[float, float, float], expected: str, worse: int
) -> None:
    """Real and large enough is a regression; real and small is none; unsure is undecided, in either direction."""
    estimate, low, high = (worse * value for value in interval)
    assert classify(Interval(estimate, min(low, high), max(low, high)), worse, 0.05) == expected


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [(1, 1, "noise between repeats is unknown"), (1, 5, "The baseline is one run"), (5, 1, "The candidate is one run")],
)
def test_a_lack_of_repeats_is_said(before: int, after: int, says: str) -> None:
    """A single run on a side is noted, and the comparison is made all the same."""
    sides = repeats(40, count=before), repeats(41, count=after)
    assert any(says in note for note in notes(*sides))
    assert len(changes(*sides)) == 5
    assert notes(repeats(40, count=2), repeats(41, count=2)) == []


@pytest.mark.parametrize(
    ("objective", "failed", "outcome"),
    [
        ("p99=40ms", 0.0, "met"),
        ("p99=10ms", 0.0, "missed"),
        ("p50=20ms", 0.6, "missed"),
        ("errors=0.5%", 0.0, "met"),
        ("errors=0.5%", 0.02, "missed"),
        ("p99.99=60ms", 0.0, "undecided"),
    ],
)
def test_objectives_are_held_against_all_repeats(objective: str, failed: float, outcome: str) -> None:
    """A failed request is one over the limit; too few requests for a far quantile leave it undecided."""
    runs = [records(seed, failed=failed) for seed in range(60, 65)]
    finding = objective_finding(check(runs, slo(objective)[0]))
    assert finding.outcome == outcome
    assert "failed" in finding.sentence
    assert finding.fails == (outcome == "missed")


@pytest.mark.parametrize(("rate", "outcome"), [(200, "met"), (500, "missed")])
def test_a_least_rate_is_held_against_the_mean(baseline: list[RunSummary], rate: float, outcome: str) -> None:
    """Some 300/s reach 200/s and miss 500/s."""
    assert rate_finding(baseline, rate).outcome == outcome


@pytest.mark.parametrize(
    ("limit", "outcome"), [("p99=40ms", "met"), ("p99=8ms", "missed"), ("p99.9=40ms", "undecided")]
)
def test_one_run_is_judged_without_its_warm_up(limit: str, outcome: str) -> None:
    """A cold start that breaks the objective is discarded, and the sentence names the failed requests."""
    run = records(70)
    run.done_ns[:100] += 200_000_000
    found = judge(run, slo(limit))
    assert found.outcome == outcome
    assert 90 <= found.steadiness.warm_up.drop <= 120
    assert "failed" in found.sentence


def test_a_growing_backlog_misses_any_objective() -> None:
    """A run whose latency stays below the limit only because it ended is missed."""
    run = records(71)
    run.done_ns = run.intended_ns + np.arange(REQUESTS) * 2_000_000
    found = judge(run, slo("p99=10s"))
    assert found.outcome == "missed"
    assert "backlog grows" in found.sentence


def test_a_growing_latency_is_not_met() -> None:
    """A run that becomes slower without a backlog, within its limit, is undecided."""
    intended = np.arange(REQUESTS, dtype=np.int64) * 100_000_000
    run = Records("run", "ranker", "dynamic", intended)
    run.sent_ns, run.done_ns = intended.copy(), intended + np.linspace(1e6, 9e6, REQUESTS).astype(np.int64)
    run.status[:] = OK
    found = judge(run, slo("p99=20ms"))
    assert found.outcome == "undecided"
    assert "median latency grows" in found.sentence


def test_a_baseline_is_read_as_it_was_written(baseline: list[RunSummary], tmp_path: Path) -> None:
    """Everything survives the file, and nothing else is left beside it."""
    write_baseline(tmp_path / "new" / "baseline.json", baseline)
    assert read_baseline(tmp_path / "new" / "baseline.json") == baseline
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["baseline.json"]


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda value: value | {"version": 2}, "version 2: expected 'tritonbatch baseline', version 1"),
        (lambda value: value | {"format": "other"}, "is 'other'"),
        (lambda value: value | {"runs": []}, "holds no run"),
        (lambda value: value | {"runs": [{}]}, "is damaged"),
        (lambda value: value | {"runs": 3}, "is damaged"),
        (lambda value: value | {"runs": [value["runs"][0] | {"latency": {}}]}, "is damaged"),
        (
            lambda value: value | {"runs": [value["runs"][0] | {"throughput": {"value": math.nan, "error": 0}}]},
            "damaged",
        ),
    ],
)
def test_a_file_that_is_no_baseline_is_refused(
    baseline: list[RunSummary], tmp_path: Path, change: Callable[[dict[str, object]], dict[str, object]], says: str
) -> None:
    """Another version, another format, nothing in it, or damage: one sentence."""
    path = tmp_path / "baseline.json"
    write_baseline(path, baseline)
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(InvalidInput, match=says):
        read_baseline(path)


def test_a_dead_run_is_no_baseline(tmp_path: Path) -> None:
    """A run in which everything failed, or no run at all, cannot be the standard."""
    with pytest.raises(InvalidInput, match="No request of run-3300 succeeded"):
        write_baseline(tmp_path / "b.json", repeats(33, failed=1.1, count=1))
    with pytest.raises(InvalidInput, match="at least one folder"):
        write_baseline(tmp_path / "b.json", [])
    assert list(tmp_path.iterdir()) == []


def write_run(folder: Path, run: Records, **facts: object) -> None:
    """A run's folder as a load leaves it."""
    folder.mkdir(parents=True)
    write_records(run, folder / "records.parquet")
    (folder / "records.json").write_text(json.dumps({"rate_per_s": 300, "loop": "open", "complete": True, **facts}))


def test_runs_are_found_below_the_folders_named(tmp_path: Path) -> None:
    """A folder of repeats gives them all, with the facts of their records.json and manifest."""
    for number in range(3):
        write_run(tmp_path / "nightly" / str(number), records(number))
    (tmp_path / "nightly" / "manifest.json").write_text(json.dumps({"machine": {"cores": 2}}))
    runs = read_runs([tmp_path / "nightly"])
    assert len(runs) == 3
    assert runs[0].facts["machine"] == {"cores": 2}
    assert (runs[0].facts["model"], runs[0].facts["rate_per_s"]) == ("ranker", 300)


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (["nowhere"], "No records in"),
        (["a", "a"], "is named twice"),
        (["a", "faster"], "300/s arrive in one and 600/s in the other"),
        (["a", "serial"], "variant is dynamic in one and serial in the other"),
        (["a", "other"], "model is ranker in one and encoder in the other"),
    ],
)
def test_runs_that_are_no_repeats_are_refused(tmp_path: Path, names: Sequence[str], says: str) -> None:
    """Missing, named twice, under another load, or of another model."""
    write_run(tmp_path / "a", records(1))
    write_run(tmp_path / "faster", records(2), rate_per_s=600)
    serial = records(4)
    serial.variant = "serial"
    write_run(tmp_path / "serial", serial)
    write_run(tmp_path / "other", records(3, model="encoder"))
    with pytest.raises(InvalidInput, match=says):
        read_runs([tmp_path / name for name in names])


def test_the_files_hold_every_finding_escaped(baseline: list[RunSummary]) -> None:
    """JUnit parses and counts failures, JSON is strict, Markdown has a row each; names cannot break them."""
    found = changes(baseline, repeats(50, slower=1.5))
    result = Result(tuple(found), ("a <note> & \x00 more",))
    subject = 'a<b>&"c"|\x07 dynamic'
    root = ET.fromstring(junit(result, subject))  # noqa: S314 - written here
    failing = [finding for finding in found if finding.fails]
    assert failing
    assert root.get("tests") == str(len(found)) == str(len(root.findall(".//testcase")))
    assert root.get("failures") == str(len(failing)) == str(len(root.findall(".//failure")))
    assert root.find(".//testcase").get("classname") == 'a<b>&"c"|\ufffd dynamic'  # type: ignore[union-attr]
    assert json.loads(json.dumps(plain(result, subject), allow_nan=False))["passed"] is False
    rows = [line for line in markdown(result, subject).splitlines() if line.startswith("| ")]
    assert len(rows) == 2 + len(found)
    assert "a &lt;note&gt; &amp;" in markdown(result, subject)
