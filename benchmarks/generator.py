"""The load generator beside perf_analyzer: CPU per request, what both measure of the same server, schedule error.

    python benchmarks/generator.py [--rounds 5] [--seconds 3] [--concurrency 16]

Both load the same embedded server in a closed loop at the same concurrency, in turn, every second round backwards,
so that the machine's noise falls on both; a ratio is the median of the rounds' ratios, ours over theirs.
CPU is compared on `cached`, whose answers come from the response cache, so that the generator is the limit. What they
measure is compared on `paced`, whose executions take a constant time whoever asks, so that the server is the limit.
CPU is user and system time: of the whole process for perf_analyzer, of a window without start-up for ours.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import perf_analyzer
from onnx import TensorProto, helper
from perf_analyzer import Result, run_perf_analyzer
from rich.console import Console
from rich.table import Table

from tritonbatch.client import Protocol
from tritonbatch.errors import TritonbatchError
from tritonbatch.loadtest.generator import Drive, run_locust
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import OK, read_records
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.server import EmbeddedServer

HERE = Path(__file__).resolve().parent
MAX_BATCH, WIDTH = 64, 16
CACHE = "--cache-config=local,size=4194304"
PROTOCOLS: tuple[Protocol, ...] = ("http", "grpc")
START_S = 30.0
SCHEDULE_RATE_PER_S, SCHEDULE_S = 1000.0, 10.0

PACED = '''"""Every execution takes 10 ms, whatever is in it, and no CPU."""
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.01)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", request.inputs()[0].to_dlpack())])
            for request in requests
        ]
'''


@dataclass(frozen=True, slots=True)
class Case:
    """What is run once a round: a generator against a model; *peer* says whose generator."""

    model: str
    protocol: Protocol
    peer: bool
    processes: int = 1

    @property
    def name(self) -> str:
        """As the table calls it."""
        who = "perf_analyzer" if self.peer else "tritonbatch"
        return f"{who} x{self.processes}" if self.processes > 1 else who


@dataclass(frozen=True, slots=True)
class Ratio:
    """The median of paired ratios, with their quartiles."""

    median: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f} to {self.high:.2f})"


CASES = (
    *(Case(model, protocol, peer) for model in ("cached", "paced") for protocol in PROTOCOLS for peer in (True, False)),
    Case("cached", "http", peer=False, processes=2),
)

Results = dict[Case, list[Result]]
Value = Callable[[Result], float]


def write_repository(repository: Path, concurrency: int) -> None:
    """`cached`: y = x + x, answered from the cache after the first time; `paced`: 10 ms per execution.

    At most half of the outstanding requests share an execution of `paced`, so that the other half always waits: the
    server is never idle, and the batches do not depend on how quickly a generator answers an answer.
    """
    specs = [TensorSpec(name, "TYPE_FP32", (WIDTH,)) for name in "xy"]
    for name, most in (("cached", MAX_BATCH), ("paced", max(concurrency // 2, 2))):
        folder = repository / name / "1"
        folder.mkdir(parents=True)
        config = onnx_config(name, specs[:1], specs[1:], max_batch_size=most, instances=Instances())
        config.dynamic_batching.SetInParent()
        if name == "cached":
            config.response_cache.enable = True
            onnx.save(_doubling(), folder / "model.onnx")
        else:
            config.backend = "python"
            (folder / "model.py").write_text(PACED)
        (repository / name / "config.pbtxt").write_text(config_text(config))


def _doubling() -> onnx.ModelProto:
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", WIDTH]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "doubling", tensors[:1], tensors[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def run_ours(url: str, protocol: Protocol, model: str, *, concurrency: int, seconds: float, processes: int) -> Result:
    """Load *model* in a closed loop of *concurrency* users, *processes* Locust workers sharing them.

    CPU is of the generators while they play, without their start-up; of several, the master's is not in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        drive = Drive(
            url=url,
            protocol=protocol,
            model=model,
            variant=model,
            client_batch=1,
            samples=None,
            processes=processes,
            pattern=f"closed:users={concurrency},seconds={seconds:g}",
        )
        load = Load(name="closed", rate_per_s=1.0, requests=round(seconds), seed=1, loop="closed")
        run_locust(drive, load, Path(folder), lambda _: None)
        records = read_records(Path(folder))
        cpu_s = float(json.loads((Path(folder) / "records.json").read_text())["generator_cpu_s"])
    latencies_ms = (records.done_ns - records.sent_ns)[records.status == OK] / 1e6
    p50_ms, p95_ms, p99_ms = (float(q) for q in np.quantile(latencies_ms, (0.5, 0.95, 0.99)))
    return Result(
        throughput_per_s=len(latencies_ms) / seconds,
        p50_ms=p50_ms,
        p95_ms=p95_ms,
        p99_ms=p99_ms,
        requests=len(records),
        cpu_s=cpu_s,
    )


def measure(server: EmbeddedServer, binary: Path, options: argparse.Namespace, say: Callable[[str], None]) -> Results:
    """Run every case once a round, every second round backwards."""
    results: Results = {case: [] for case in CASES}
    for number in range(options.rounds):
        for case in CASES if number % 2 == 0 else reversed(CASES):
            url = server.grpc_url if case.protocol == "grpc" else server.http_url
            load = {"concurrency": options.concurrency, "seconds": options.seconds}
            if case.peer:
                result = _patiently(partial(run_perf_analyzer, binary, url, case.protocol, case.model, **load), say)
            else:
                result = run_ours(url, case.protocol, case.model, **load, processes=case.processes)
            say(
                f"round {number + 1}/{options.rounds} {case.model} {case.protocol} {case.name}: "
                f"{result.throughput_per_s:,.0f}/s, {result.cpu_us:.0f} µs, p99 {result.p99_ms:.1f} ms"
            )
            results[case].append(result)
    return results


def _patiently(run: Callable[[], Result], say: Callable[[str], None]) -> Result:
    """Once more after a failure: perf_analyzer ends at the first connection that the server resets."""
    try:
        return run()
    except TritonbatchError as error:
        say(f"again, because {str(error).rstrip('.')}")
        return run()


def paired(ours: Iterable[float], theirs: Iterable[float]) -> Ratio:
    """The ratio ours over theirs round by round, folded."""
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    low, median, high = (float(q) for q in np.quantile(ratios, (0.25, 0.5, 0.75)))
    return Ratio(median, low, high)


def ratio(results: Results, ours: Case, theirs: Case, value: Value) -> Ratio:
    """The paired ratio of one figure between two cases."""
    return paired(map(value, results[ours]), map(value, results[theirs]))


def farthest(ratios: Iterable[Ratio]) -> Ratio:
    """The one that is farthest from 1 by factor."""
    return max(ratios, key=lambda each: abs(math.log(each.median)))


FIGURES: dict[str, Value] = {
    "throughput": lambda result: result.throughput_per_s,
    "p50": lambda result: result.p50_ms,
    "p99": lambda result: result.p99_ms,
    "cpu": lambda result: result.cpu_us,
}


def table(results: Results, model: str, concurrency: int) -> Table:
    """Medians over the rounds, and below each of ours its ratios to perf_analyzer with the quartiles."""
    shown = Table("protocol", "generator", "requests/s", "p50 ms", "p99 ms", "CPU µs/request")
    shown.title = f"model {model}, concurrency {concurrency}"
    for case in (case for case in CASES if case.model == model):
        medians = {name: statistics.median(map(value, results[case])) for name, value in FIGURES.items()}
        figures = [f"{medians['throughput']:,.0f}", *(f"{medians[name]:.2f}" for name in ("p50", "p99"))]
        shown.add_row(case.protocol, case.name, *figures, f"{medians['cpu']:.0f}")
        if not case.peer:
            theirs = Case(model, case.protocol, peer=True)
            shown.add_row("", "  ratio", *(str(ratio(results, case, theirs, value)) for value in FIGURES.values()))
            shown.add_section()
    return shown


def schedule_error(url: str) -> tuple[float, float, float]:
    """Milliseconds from intended to sent at a constant 1,000 requests/s for 10 s: p50, p99 and the largest."""
    load = Load(
        name="constant",
        rate_per_s=SCHEDULE_RATE_PER_S,
        requests=round(SCHEDULE_RATE_PER_S * SCHEDULE_S),
        seed=1,
        process="constant",
    )
    drive = Drive(url=url, protocol="http", model="cached", variant="cached", client_batch=1, samples=None)
    with tempfile.TemporaryDirectory() as folder:
        run_locust(drive, load, Path(folder), lambda _: None)
        records = read_records(Path(folder))
    return spread_ms((records.sent_ns - records.intended_ns)[records.sent_ns >= 0])


def sleep_error() -> tuple[float, float, float]:
    """What the machine itself adds: the same schedule, where nothing is done but to sleep until each moment."""
    due_ns = time.perf_counter_ns() + np.arange(1, SCHEDULE_RATE_PER_S * SCHEDULE_S + 1) * (1e9 / SCHEDULE_RATE_PER_S)
    woken_ns = np.zeros(len(due_ns))
    for number, moment_ns in enumerate(due_ns):
        time.sleep(max(0.0, (moment_ns - time.perf_counter_ns()) / 1e9))
        woken_ns[number] = time.perf_counter_ns()
    return spread_ms(woken_ns - due_ns)


def spread_ms(error_ns: npt.NDArray[np.int64] | npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Median, 99th percentile and the largest, in milliseconds."""
    p50, p99 = np.quantile(error_ns, (0.5, 0.99)) / 1e6
    return float(p50), float(p99), float(error_ns.max()) / 1e6


def last_lines(results: Results) -> list[str]:
    """The figures that are looked for; of two protocols the agreement is the one farther from 1."""
    peer = {p: Case("cached", p, peer=True) for p in PROTOCOLS}
    cpu = [
        f"cpu_{p}={ratio(results, Case('cached', p, peer=False), peer[p], FIGURES['cpu']).median:.2f}"
        for p in PROTOCOLS
    ]
    agreement = []
    for name in ("throughput", "p50", "p99"):
        pairs = [(Case("paced", p, peer=False), Case("paced", p, peer=True)) for p in PROTOCOLS]
        worst = farthest(ratio(results, ours, theirs, FIGURES[name]) for ours, theirs in pairs)
        agreement.append(f"{name}={worst.median:.3f}")
    two = ratio(results, Case("cached", "http", peer=False, processes=2), peer["http"], FIGURES["throughput"])
    return [
        f"ratio {' '.join(cpu)}",
        f"agreement {' '.join(agreement)}",
        f"processes2 rps ratio={two.median:.2f}",
    ]


def stated(peer_version: str) -> str:
    """When, on what, and with which versions this was measured."""
    packages = ", ".join(f"{name} {version(name)}" for name in ("locust", "gevent", "geventhttpclient", "grpcio"))
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    return (
        f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {platform.machine()}, {os.cpu_count()} CPUs, load before {load}, "
        f"Python {platform.python_version()}, {packages}\n{peer_version}: {perf_analyzer.STATED}"
    )


def main() -> None:
    """Measure, show a table for each model, and end with the lines of figures."""
    parser = argparse.ArgumentParser(description="The load generator beside perf_analyzer, paired.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--concurrency", type=int, default=16)
    options = parser.parse_args()
    console = Console(width=120)
    binary = perf_analyzer.provision()
    header = stated(perf_analyzer.version(binary))
    with tempfile.TemporaryDirectory() as folder:
        write_repository(Path(folder), options.concurrency)
        with EmbeddedServer(Path(folder), arguments=[CACHE]) as server:
            errors_ms = {"schedule error": schedule_error(server.http_url), "bare sleep error": sleep_error()}
            results = measure(server, binary, options, Console(stderr=True).print)
    console.print(header, highlight=False)
    for model in ("cached", "paced"):
        console.print(table(results, model, options.concurrency))
    for name, (p50_ms, p99_ms, longest_ms) in errors_ms.items():
        print(f"{name} p99={p99_ms:.2f} ms p50={p50_ms:.2f} ms max={longest_ms:.2f} ms")
    print("\n".join(last_lines(results)))


if __name__ == "__main__":
    try:
        main()
    except TritonbatchError as problem:
        sys.exit(str(problem))
