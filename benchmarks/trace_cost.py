"""What Triton's own trace costs: paired, alternating runs with the trace off and on (rate 1), closed loop.

    python benchmarks/trace_cost.py [--pairs 100] [--seconds 0.5] [--concurrency 16] [--protocol http]

Each run keeps the same number of requests outstanding to a tiny model on the embedded server. Off and on alternate and
each pair begins with the other one, so that the machine's noise and drift fall on both; many short pairs beat a few
long ones. A ratio is the median of the pairs' ratios (on over off), with the interval that holds it and the quartiles
of the pairs beside it. The server's CPU time per request (all its processes) is what the trace costs where the load
generator does not share the cores.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import platform
import tempfile
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
import psutil
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

from tritonbatch.client import AsyncClient, Options, Protocol
from tritonbatch.errors import RequestFailed, ServerFailed
from tritonbatch.loadtest.tracing import trace_arguments, traced
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.server import EmbeddedServer
from tritonbatch.server.machine import machine
from tritonbatch.server.provision import TRITON_VERSION

MODEL = "small"
MAX_BATCH = 16
PER_SERVER = 10


@dataclass(frozen=True, slots=True)
class Run:
    """One run: answers per second, latency quantiles in ms, and the server's CPU microseconds per request."""

    throughput_per_s: float
    p50_ms: float
    p99_ms: float
    server_cpu_us: float


FIGURES = {
    "throughput_per_s": "answers per second",
    "p50_ms": "p50 latency, ms",
    "p99_ms": "p99 latency, ms",
    "server_cpu_us": "server CPU per request, µs",
}


def write_model(repository: Path) -> None:
    """`small`: y = x + x for 16 FP32 values, in dynamic batches."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 16]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], MODEL, tensors[:1], tensors[1:])
    folder = repository / MODEL / "1"
    folder.mkdir(parents=True)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    specs = [TensorSpec(name, "TYPE_FP32", (16,)) for name in "xy"]
    config = onnx_config(MODEL, specs[:1], specs[1:], max_batch_size=MAX_BATCH, instances=Instances())
    config.dynamic_batching.SetInParent()
    (repository / MODEL / "config.pbtxt").write_text(config_text(config))


def server_cpu_s() -> float:
    """The CPU time so far of the server and its stubs, all of them descendants of this process."""
    total = 0.0
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system
    return total


async def closed_loop(url: str, protocol: Protocol, concurrency: int, seconds: float) -> Run:
    """Keep *concurrency* requests outstanding for *seconds*; each has a request id, as in a traced load test."""
    latency_ms: list[float] = []
    async with AsyncClient(url, protocol=protocol, retry=None) as client:
        array = np.ones((1, 16), np.float32)
        ready = [await client.request(MODEL, {"x": array}, options=Options(request_id=f"r-{k}")) for k in range(1000)]
        for _ in range(20):
            await client.send(ready[0])
        cpu_s, start = server_cpu_s(), time.perf_counter()

        async def caller(first: int) -> None:
            for k in range(first, 10_000_000, concurrency):
                sent = time.perf_counter()
                if sent - start > seconds:
                    return
                await client.send(ready[k % len(ready)])
                latency_ms.append((time.perf_counter() - sent) * 1e3)

        await asyncio.gather(*(caller(number) for number in range(concurrency)))
        took_s, cpu_s = time.perf_counter() - start, server_cpu_s() - cpu_s
    p50, p99 = np.quantile(latency_ms, [0.5, 0.99])
    count = len(latency_ms)
    return Run(count / took_s, float(p50), float(p99), cpu_s / count * 1e6)


def one(server: EmbeddedServer, options: argparse.Namespace, *, trace: bool) -> tuple[Run, int]:
    """One run, and the bytes of trace that it wrote."""
    url = server.grpc_url if options.protocol == "grpc" else server.http_url
    with contextlib.ExitStack() as stack:
        tracing = stack.enter_context(traced(server.http_url, "http", MODEL)) if trace else None
        run = asyncio.run(closed_loop(url, options.protocol, options.concurrency, options.seconds))
    files = tracing.files if tracing else []
    written = sum(file.stat().st_size for file in files)
    for file in files:
        file.unlink()
    return run, written


def measure(folder: Path, options: argparse.Namespace) -> tuple[list[tuple[Run, Run]], int, int]:
    """The pairs (off, on), the bytes of trace, and how often the server failed.

    Triton 2.51 can fail after tens of thousands of traced requests (see server pull request 8144): every PER_SERVER
    pairs have a server of their own, and what one that fails takes with it is left out.
    """
    pairs: list[tuple[Run, Run]] = []
    written = failed = 0
    for first in range(0, options.pairs, PER_SERVER):
        with EmbeddedServer(folder / "repository", arguments=trace_arguments(folder / "trace.json")) as server:
            try:
                one(server, options, trace=False)
                for pair in range(first, min(first + PER_SERVER, options.pairs)):
                    runs = {
                        trace: one(server, options, trace=trace) for trace in ((False, True), (True, False))[pair % 2]
                    }
                    pairs.append((runs[False][0], runs[True][0]))
                    written += runs[True][1]
            except (RequestFailed, ServerFailed):
                failed += 1
    return pairs, written, failed


def column(runs: list[Run], name: str) -> npt.NDArray[np.float64]:
    """One figure of every run."""
    return np.array([getattr(run, name) for run in runs], np.float64)


def median_interval(ratio: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Bounds that hold the median with 95 %, from the ranks around it (whatever the distribution)."""
    half = 0.98 * len(ratio) ** 0.5
    ranks = np.clip([len(ratio) / 2 - half, len(ratio) / 2 + half - 1], 0, len(ratio) - 1)
    bounds: npt.NDArray[np.float64] = np.sort(ratio)[np.round(ranks).astype(int)]
    return bounds


def interval(bounds: npt.NDArray[np.float64]) -> str:
    """The two as text."""
    return f"{bounds[0]:.3f} to {bounds[1]:.3f}"


def table(off: list[Run], on: list[Run]) -> Table:
    """Medians of both, and the ratio with how sure it is."""
    shown = Table("figure", "off", "on", "on / off", "95 % of it", "quartiles", title="Triton's trace, rate 1")
    for name, title in FIGURES.items():
        without, with_trace = column(off, name), column(on, name)
        ratio = with_trace / without
        quarters = np.quantile(ratio, [0.25, 0.75])
        medians = f"{np.median(without):.2f}", f"{np.median(with_trace):.2f}", f"{np.median(ratio):.3f}"
        shown.add_row(title, *medians, interval(median_interval(ratio)), interval(quarters))
    return shown


def main() -> None:
    """Measure and show one table."""
    parser = argparse.ArgumentParser(description="What Triton's trace costs, paired.")
    parser.add_argument("--pairs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--protocol", choices=("http", "grpc"), default="http")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder) / "repository")
        pairs, written, failed = measure(Path(folder), options)
    off, on = [without for without, _ in pairs], [with_trace for _, with_trace in pairs]
    here = machine()
    console = Console(width=120)
    console.print(
        f"{datetime.now(UTC):%Y-%m-%d}, Triton {TRITON_VERSION}, {options.protocol}, "
        f"concurrency {options.concurrency}, {len(pairs)} pairs of {options.seconds:g} s, "
        f"Python {platform.python_version()}, {here['processor']}, {here['cores']} cores"
    )
    console.print(table(off, on))
    traced_requests = sum(run.throughput_per_s for run in on) * options.seconds
    console.print(f"{written / traced_requests:.0f} bytes of trace per request; the server failed {failed} times")


if __name__ == "__main__":
    main()
