"""The pure parts of the benchmark against perf_analyzer: its export, what several processes saw, paired ratios."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tritonbatch.errors import NotSupported, TritonbatchError

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
NAMES = ("perf_analyzer", "generator")
# Written by perf_analyzer 2.44.0 with -f, gRPC, concurrency 16.
EXPORT = """\
Concurrency,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,\
Server Compute Infer,Server Compute Output,Server Cache Hit,Server Cache Miss,Client Recv,p50 latency,p90 latency,\
p95 latency,p99 latency
16,10072.1,1,0,5,165,23954,2398,3,33,0,1297,2250,2856,7618

"""


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The modules by name; benchmarks are scripts, which find each other through their own folder."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in NAMES:  # a package of one of these names may be installed, and imported
        monkeypatch.delitem(sys.modules, name, raising=False)
    loaded = {name: importlib.import_module(name) for name in NAMES}
    yield loaded
    for name in NAMES:
        sys.modules.pop(name)


@pytest.fixture
def peer(benchmarks: dict[str, ModuleType]) -> Any:
    """benchmarks/perf_analyzer.py."""
    return benchmarks["perf_analyzer"]


@pytest.fixture
def generator(benchmarks: dict[str, ModuleType]) -> Any:
    """benchmarks/generator.py."""
    return benchmarks["generator"]


def test_reads_an_export(peer: Any) -> None:
    """Throughput is per second, perf_analyzer's microseconds become milliseconds, CPU is per request of the server."""
    result = peer.result_of(EXPORT, 37_448, 2.3)
    assert (result.throughput_per_s, result.p50_ms, result.p95_ms, result.p99_ms) == (10072.1, 1.297, 2.856, 7.618)
    assert result.cpu_us == pytest.approx(61.4, abs=0.1)


@pytest.mark.parametrize("export", ["", EXPORT.splitlines()[0], "Concurrency,p50 latency\n16,1\n", "p50 latency\nx\n"])
def test_an_export_without_the_figures_is_an_error(peer: Any, export: str) -> None:
    """A run that measured nothing never becomes a figure."""
    with pytest.raises(TritonbatchError, match="export cannot be read"):
        peer.result_of(export, 1, 1.0)


def test_a_missing_runtime_is_said_in_one_sentence(peer: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without the embedded server's libraries the sentence says which is missing and what to do."""
    monkeypatch.setenv("TRITONBATCH_RUNTIME", str(tmp_path / "nowhere"))
    (tmp_path / "perf_analyzer").touch()
    with pytest.raises(NotSupported, match=r"needs libcudart\.so\.12.*run make setup first"):
        peer.provision(tmp_path)


def test_ratios_are_paired_round_by_round(generator: Any) -> None:
    """A machine that is twice as slow in one round changes no ratio."""
    both = generator.paired([2.0, 4.0, 2.2], [1.0, 2.0, 1.0])
    assert (both.median, both.low) == (2.0, 2.0)
    assert both.high == pytest.approx(2.1)


def test_the_worse_agreement_is_the_one_farther_from_one_by_factor(generator: Any) -> None:
    """Half is as far from agreement as double, so 0.6 is worse than 1.5."""
    worse, better = generator.Ratio(0.6, 0.6, 0.6), generator.Ratio(1.5, 1.5, 1.5)
    assert generator.farthest([better, worse]) is worse
