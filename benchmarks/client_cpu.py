"""CPU time per call of tritonbatch.client beside raw tritonclient, same transport, paired in one run.

    python benchmarks/client_cpu.py [--rounds 15] [--calls 200]

Both send the same array with the same shape again and again to a tiny model on the embedded server and read the output
as an array. Rounds of the two alternate, so that the machine's noise falls on both; the ratio is the median of the
rounds' ratios, with the quartiles beside it. CPU is the user and system time of all threads of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import platform
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from onnx import TensorProto, helper
from rich.console import Console
from rich.table import Table

from tritonbatch.client import AsyncClient, Client, Protocol
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.server import EmbeddedServer

SMALL, LARGE = 16, 262_144
WARM_UP = 20

Infer = Callable[[npt.NDArray[Any]], Any]


@dataclass(frozen=True, slots=True)
class Paired:
    """One transport: CPU microseconds per call of both, round by round."""

    name: str
    raw_us: npt.NDArray[np.float64]
    ours_us: npt.NDArray[np.float64]

    def ratio(self, quantile: float = 0.5) -> float:
        """Ours over raw; below 1 ours takes less."""
        return float(np.quantile(self.ours_us / self.raw_us, quantile))


def write_model(repository: Path) -> None:
    """`twice`: y = x + x for FP32 vectors of any length, which costs the server next to nothing."""
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", "n"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "twice", tensors[:1], tensors[1:])
    folder = repository / "twice" / "1"
    folder.mkdir(parents=True)
    opsets = [helper.make_opsetid("", 18)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), folder / "model.onnx")
    specs = [TensorSpec(name, "TYPE_FP32", (-1,)) for name in "xy"]
    config = onnx_config("twice", specs[:1], specs[1:], max_batch_size=8, instances=Instances())
    (repository / "twice" / "config.pbtxt").write_text(config_text(config))


def raw_inputs(module: Any, array: npt.NDArray[Any]) -> list[Any]:
    """What a user of tritonclient writes for every call."""
    tensor = module.InferInput("x", list(array.shape), "FP32")
    tensor.set_data_from_numpy(array)
    return [tensor]


def blocking(protocol: Protocol, url: str, size: int, rounds: int, calls: int) -> Paired:
    """Both blocking clients of one transport."""
    module: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
    array = np.ones((1, size), np.float32)

    def cpu_us(infer: Callable[[], Any]) -> float:
        start = time.process_time_ns()
        for _ in range(calls):
            infer()
        return (time.process_time_ns() - start) / calls / 1e3

    with module.InferenceServerClient(url) as raw, Client(url, protocol=protocol) as client:
        pair = (
            lambda: raw.infer("twice", raw_inputs(module, array)).as_numpy("y"),
            lambda: client.infer("twice", {"x": array})["y"],
        )
        for infer in pair:
            for _ in range(WARM_UP):
                np.testing.assert_array_equal(infer(), 2 * array)
        measured = [[cpu_us(infer) for infer in pair] for _ in range(rounds)]
    return paired(protocol, measured)


async def awaiting(protocol: Protocol, url: str, size: int, rounds: int, calls: int) -> Paired:
    """Both asyncio clients of one transport."""
    module: Any = tritonclient.http if protocol == "http" else tritonclient.grpc
    aio: Any = tritonclient.http.aio if protocol == "http" else tritonclient.grpc.aio
    array = np.ones((1, size), np.float32)

    async def cpu_us(infer: Callable[[], Awaitable[Any]]) -> float:
        start = time.process_time_ns()
        for _ in range(calls):
            await infer()
        return (time.process_time_ns() - start) / calls / 1e3

    async with aio.InferenceServerClient(url) as raw, AsyncClient(url, protocol=protocol) as client:

        async def theirs() -> Any:
            return (await raw.infer("twice", raw_inputs(module, array))).as_numpy("y")

        async def ours() -> Any:
            return (await client.infer("twice", {"x": array}))["y"]

        for infer in (theirs, ours):
            for _ in range(WARM_UP):
                np.testing.assert_array_equal(await infer(), 2 * array)
        measured = [[await cpu_us(infer) for infer in (theirs, ours)] for _ in range(rounds)]
    return paired(f"{protocol}_async", measured)


def paired(name: str, measured: list[list[float]]) -> Paired:
    """The two columns of *measured*."""
    columns = np.array(measured).T
    return Paired(name, columns[0], columns[1])


def measure(server: EmbeddedServer, size: int, rounds: int, calls: int) -> list[Paired]:
    """The four transports in turn."""
    return [
        blocking("http", server.http_url, size, rounds, calls),
        blocking("grpc", server.grpc_url, size, rounds, calls),
        asyncio.run(awaiting("http", server.http_url, size, rounds, calls)),
        asyncio.run(awaiting("grpc", server.grpc_url, size, rounds, calls)),
    ]


def table(title: str, results: list[Paired]) -> Table:
    """CPU per call and the ratio with its quartiles."""
    shown = Table("transport", "tritonclient µs", "tritonbatch µs", "ratio", "quartiles", title=title)
    for result in results:
        shown.add_row(
            result.name,
            f"{np.median(result.raw_us):.0f}",
            f"{np.median(result.ours_us):.0f}",
            f"{result.ratio():.2f}",
            f"{result.ratio(0.25):.2f} to {result.ratio(0.75):.2f}",
        )
    return shown


def main() -> None:
    """Measure, show two tables, and end with the line of ratios."""
    parser = argparse.ArgumentParser(description="CPU per call beside raw tritonclient, paired.")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--calls", type=int, default=200)
    options = parser.parse_args()
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as folder:
        write_model(Path(folder))
        with EmbeddedServer(Path(folder)) as server:
            small = measure(server, SMALL, options.rounds, options.calls)
            large = measure(server, LARGE, options.rounds, max(options.calls // 10, 1))
    console.print(
        f"CPU per call, {datetime.now(UTC):%Y-%m-%d}, Python {platform.python_version()}, "
        f"tritonclient {version('tritonclient')}, grpcio {version('grpcio')}, {platform.machine()}"
    )
    console.print(table("64-byte input", small))
    console.print(table("1 MiB input and output", large))
    print("ratio " + " ".join(f"{result.name}={result.ratio():.2f}" for result in small))


if __name__ == "__main__":
    main()
