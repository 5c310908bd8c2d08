"""Requests through shared memory against the real server: right answers, nothing copied, and nothing left behind."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from tritonclient.grpc import service_pb2 as pb
from tritonclient.utils import InferenceServerException

from tritonbatch.client import (
    AsyncClient,
    Client,
    InvalidRequest,
    Options,
    Protocol,
    Retry,
    ServerError,
    TimedOut,
    shared_regions,
)
from tritonbatch.client.errors import translated
from tritonbatch.client.shared_calls import plan, shared_call
from tritonbatch.client.shared_memory import AsyncSharedMemory, SharedMemory
from tritonbatch.client.transport import finished
from tritonbatch.errors import InvalidInput, NotSupported
from tritonbatch.server import EmbeddedServer

SHM = Path("/dev/shm")  # noqa: S108 - where POSIX shared memory lies


def url(server: EmbeddedServer, protocol: Protocol) -> str:
    """The server's address for *protocol*."""
    return server.http_url if protocol == "http" else server.grpc_url


def left(server: EmbeddedServer | None = None) -> list[Any]:
    """What of this process's shared memory still has a name, is mapped here, or is registered at *server*."""
    gc.collect()  # exceptions that a test has caught hold its arrays
    names = [entry.name for entry in SHM.glob(f"tritonbatch-*puts-{os.getpid()}-*")]
    mapped = [line for line in Path("/proc/self/maps").read_text().splitlines() if "/tritonbatch-" in line]
    return [*names, *mapped, *(registered(server) if server else [])]


def registered(server: EmbeddedServer) -> list[Any]:
    """The system regions that *server* has mapped."""
    address = f"http://{server.http_url}/v2/systemsharedmemory/status"
    with urllib.request.urlopen(address, timeout=10) as reply:
        listed: list[Any] = json.load(reply)
    return listed


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, client_server: EmbeddedServer) -> Iterator[Client]:
    """A client of the server with the small Python models, once per transport; no memory is left after the test."""
    with Client(url(client_server, request.param), protocol=request.param) as connected:
        yield connected
    assert left(client_server) == []


@pytest.fixture(params=["http", "grpc"])
def onnx_client(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[Client]:
    """As `client`, of the server with the ONNX models."""
    with Client(url(server, request.param), protocol=request.param) as connected:
        yield connected
    assert left(server) == []


@pytest.fixture
def kill_server() -> Callable[[EmbeddedServer], None]:
    """Kills a tritonserver that the test started, without giving it the time to end its connections."""

    def kill(server: EmbeddedServer) -> None:
        assert server._guard is not None
        processes = psutil.Process(server._guard.pid).children(recursive=True)
        for process in processes:
            process.kill()
        psutil.wait_procs(processes, timeout=10)

    return kill


@pytest.mark.triton
def test_the_answers_are_those_of_an_ordinary_request(onnx_client: Client) -> None:
    """Every number of rows up to the most gives what `infer` gives, in read-only arrays, call after call."""
    with SharedMemory(onnx_client, "linear", rows=8) as memory:
        for rows in (8, 1, 5):
            x = np.random.default_rng(rows).random((rows, 4), np.float32)
            memory.inputs["x"][:rows] = x
            y = memory.infer(rows)["y"]
            np.testing.assert_array_equal(y, onnx_client.infer("linear", {"x": x})["y"])
            assert not y.flags.writeable
        assert memory.infer()["y"].shape == (8, 3)


@pytest.mark.triton
def test_every_numeric_type_lies_side_by_side(onnx_client: Client) -> None:
    """Twelve inputs and outputs of different types share a region each, bit for bit, or only the outputs asked for."""
    rng = np.random.default_rng(0)
    with SharedMemory(onnx_client, "echo", rows=5) as memory:
        for array in memory.inputs.values():
            array[:] = rng.integers(0, 2, array.shape)
        outputs = memory.infer(rows=3)
        assert len(outputs) == 12
        for name, array in memory.inputs.items():
            got = outputs[name.replace("in_", "out_")]
            assert got.dtype == array.dtype
            np.testing.assert_array_equal(got, array[:3])
    with SharedMemory(onnx_client, "echo", rows=5, options=Options(outputs=("out_INT8",))) as memory:
        assert list(memory.infer()) == ["out_INT8"]


@pytest.mark.triton
def test_the_special_models_are_served(client: Client) -> None:
    """BF16, a model without batch axis and an optional input that `shapes` names work as over the wire."""
    with SharedMemory(client, "bfloat", rows=8) as memory:
        memory.inputs["x"][:] = np.arange(8)[:, None]
        y = memory.infer(rows=5)["y"]
        assert y.dtype.name == "bfloat16"
        assert y.astype(np.float32).ravel().tolist() == [0, 1, 2, 3, 4]
    with SharedMemory(client, "nobatch", rows=1) as memory:
        memory.inputs["x"][:] = 3
        assert memory.infer()["y"].tolist() == [[3] * 3] * 2
    options = Options(request_id="one", parameters={"flag": True, "level": 3, "share": 0.5, "word": "w"})
    with SharedMemory(client, "optional", rows=2, shapes={"b": (2,)}, options=options) as memory:
        memory.inputs["a"][:], memory.inputs["b"][:] = 3, 4
        assert memory.infer()["y"].tolist() == [[7, 7]] * 2
    with SharedMemory(client, "optional", rows=2) as memory:
        memory.inputs["a"][:] = 3
        assert list(memory.inputs) == ["a"]
        assert memory.infer()["y"].tolist() == [[3, 3]] * 2


@pytest.mark.triton
def test_the_tensors_do_not_travel(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request with 400 kB of input is a call of less than 1 kB, and its reply is as small."""
    sizes = []
    exchange = client._core.transport.exchange

    async def recording(address: str, call: Any, timeout_s: float) -> Any:
        reply = await exchange(address, call, timeout_s)
        sizes.append((sum(len(part) for part in call.body), len(reply.body)))
        return reply

    with SharedMemory(client, "free", rows=4, shapes={"x": (25_000,)}) as memory:
        memory.inputs["x"][:] = 1
        monkeypatch.setattr(client._core.transport, "exchange", recording)
        assert memory.infer()["y"].ravel().tolist() == [25_000] * 4
    sent, received = sizes[0]
    assert 0 < sent < 1000
    assert 0 < received < 1000


@pytest.mark.triton
def test_both_protocols_say_the_same(client_server: EmbeddedServer) -> None:
    """Version, request id, queue timeout, priority and parameters travel beside the references, headers around them."""
    with Client(client_server.http_url) as client:
        contract = client.contract("optional")
    options = Options(version="1", priority=2, parameters={"flag": True, "share": 0.5})
    planned = plan(contract, options, 4, {"b": (2,)})
    over_http = shared_call("http", planned, ("in", "out"), 3)(70, "id1", {"traceparent": "t"})
    over_grpc = shared_call("grpc", planned, ("in", "out"), 3)(70, "id1", {"traceparent": "t"})
    assert (over_http.target, over_grpc.target) == ("/v2/models/optional/versions/1/infer", "ModelInfer")
    assert over_http.headers == over_grpc.headers == {"traceparent": "t"}
    said, message = json.loads(b"".join(over_http.body)), pb.ModelInferRequest.FromString(b"".join(over_grpc.body))
    assert said["parameters"] == {"priority": 2, "timeout": 70, "flag": True, "share": 0.5}
    assert message.parameters["priority"].uint64_param == 2
    assert message.parameters["timeout"].int64_param == 70
    assert message.parameters["flag"].bool_param
    assert message.parameters["share"].double_param == 0.5
    assert said["id"] == message.id == "id1"
    assert message.model_version == "1"
    second = {"shared_memory_region": "in", "shared_memory_byte_size": 24, "shared_memory_offset": 64}
    assert said["inputs"][1] == {"name": "b", "shape": [3, 2], "datatype": "FP32", "parameters": second}
    assert message.inputs[1].shape == [3, 2]
    assert message.inputs[1].parameters["shared_memory_offset"].int64_param == 64
    assert message.outputs[0].parameters["shared_memory_region"].string_param == "out"


@pytest.mark.triton
def test_an_async_client_does_the_same(client_server: EmbeddedServer) -> None:
    """Over both transports, awaited: the right rows, an error that passes through, and nothing left after either."""

    async def run(protocol: Protocol) -> None:
        async with AsyncClient(url(client_server, protocol), protocol=protocol) as client:
            async with AsyncSharedMemory(client, "half", rows=8) as memory:
                memory.inputs["x"][:] = np.arange(8)[:, None]
                assert (await memory.infer(rows=3))["y"].ravel().tolist() == [0, 1, 2]
            with pytest.raises(ZeroDivisionError):
                async with AsyncSharedMemory(client, "half", rows=8):
                    raise ZeroDivisionError
            async with AsyncSharedMemory(client, "sleeper", rows=1) as memory:
                memory.inputs["x"][:] = 1
                task = asyncio.create_task(memory.infer())
                await asyncio.sleep(0.2)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                with pytest.raises(InvalidInput, match="ended without an answer"):
                    await memory.infer()

    for protocol in ("http", "grpc"):
        asyncio.run(asyncio.wait_for(run(protocol), 60))
        assert left(client_server) == []


@pytest.mark.triton
def test_the_name_is_gone_as_soon_as_the_server_has_it(client: Client, client_server: EmbeddedServer) -> None:
    """Inside the block two regions are registered, and /dev/shm shows none that a killed process could leave."""
    with SharedMemory(client, "half", rows=1):
        assert len(registered(client_server)) == 2
        assert list(SHM.glob(f"tritonbatch-*puts-{os.getpid()}-*")) == []


@pytest.mark.triton
def test_fifty_in_a_row_leave_nothing(client: Client, client_server: EmbeddedServer) -> None:
    """Neither names nor mappings nor registrations nor open files pile up."""
    client.infer("half", {"x": np.ones((1, 1), np.float16)})  # opens the connection
    files = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(50):
        with SharedMemory(client, "half", rows=8) as memory:
            memory.inputs["x"][:] = 1
    del memory
    assert left(client_server) == []
    assert len([*Path("/proc/self/fd").iterdir()]) <= files


@pytest.mark.triton
@pytest.mark.parametrize("error", [ServerError, KeyboardInterrupt])
def test_an_error_between_the_regions_leaves_nothing(
    client: Client, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    """When registering the outputs fails, or is interrupted, the inputs are unregistered and the error comes out."""
    asked: list[str] = []
    ask_at = client._core.ask_at

    async def failing(address: str, what: str, name: str, body: Any, timeout_s: float) -> Any:
        asked.append(f"{what} {name.split('-')[1]}")
        if asked[-1] == "register_memory outputs":
            raise error("here")
        return await ask_at(address, what, name, body, timeout_s)

    monkeypatch.setattr(client._core, "ask_at", failing)
    with pytest.raises(error, match="here"):
        SharedMemory(client, "half", rows=1).__enter__()
    assert asked[:3] == ["register_memory inputs", "register_memory outputs", "unregister_memory inputs"]
    assert [entry.name for entry in SHM.glob(f"tritonbatch-*puts-{os.getpid()}-*")] == []


@pytest.mark.triton
@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_inside_passes_through(client: Client, error: type[BaseException]) -> None:
    """Whatever leaves the block is not replaced, and the memory is given back; views that are kept stay readable."""
    memory = SharedMemory(client, "half", rows=1)
    with pytest.raises(error), memory:  # noqa: PT012 - the block is what is tested
        memory.inputs["x"][:] = 2
        kept = memory.infer()["y"]
        raise error
    assert kept.tolist() == [[2]]
    with pytest.raises(InvalidInput, match="outside its with block"):
        memory.infer()


@pytest.mark.triton
def test_memory_that_a_late_answer_may_write_to_is_not_used_again(
    client: Client, client_server: EmbeddedServer
) -> None:
    """After a timeout the next call is refused, and leaving waits until the server has let go of the regions."""
    with SharedMemory(client, "sleeper", rows=1) as memory:
        memory.inputs["x"][:] = 1
        with pytest.raises(TimedOut):
            memory.infer(timeout_s=0.2)
        with pytest.raises(InvalidInput, match="may still write to this shared memory; leave the with block"):
            memory.infer()
    assert registered(client_server) == []
    with memory:  # a new one of the same kind
        memory.inputs["x"][:] = 0
        assert memory.infer()["y"].tolist() == [[0]]


@pytest.mark.triton
def test_a_failure_of_the_model_does_not_end_the_memory(client: Client) -> None:
    """An answer that is an error is an answer: the memory can be used again."""
    with SharedMemory(client, "failing", rows=1) as memory:
        memory.inputs["x"][:] = 10
        with pytest.raises(ServerError, match="x is over 9"):
            memory.infer()
        memory.inputs["x"][:] = 1
        assert memory.infer()["y"].tolist() == [[1]]


@pytest.mark.triton
def test_a_server_that_died_does_not_keep_the_memory(
    repository: Path, kill_server: Callable[[EmbeddedServer], None]
) -> None:
    """Leaving after the server was killed raises nothing and leaves nothing, blocking or awaited."""

    async def awaited(server: EmbeddedServer) -> None:
        async with (
            AsyncClient(server.grpc_url, protocol="grpc") as client,
            AsyncSharedMemory(client, "linear", rows=1),
        ):
            kill_server(server)

    with EmbeddedServer(repository, models=["linear"]) as server:
        with Client(server.http_url) as client, SharedMemory(client, "linear", rows=1):
            asyncio.run(asyncio.wait_for(awaited(server), 60))
        assert left() == []


@pytest.mark.triton
def test_every_endpoint_gets_the_regions(server: EmbeddedServer, client_server: EmbeddedServer) -> None:
    """A client of two servers registers at both, and unregisters at both."""
    with Client(server.http_url) as one, Client([server.http_url, client_server.http_url]) as both:
        both._core._contracts["linear", ""] = one.contract("linear")
        with SharedMemory(both, "linear", rows=1):
            assert len(registered(server)) == len(registered(client_server)) == 2
    assert left(server) == left(client_server) == []


@pytest.mark.triton
@pytest.mark.parametrize(
    ("model", "rows", "shapes", "says"),
    [
        ("half", 0, {}, "half: got memory for 0 rows; expected 1 to 8"),
        ("half", 9, {}, "half: got memory for 9 rows; expected 1 to 8"),
        ("nobatch", 2, {}, "nobatch: got memory for 2 rows; expected 1 to 1"),
        ("free", 1, {}, r"sizes are missing: x \(-1,\); give"),
        ("free", 1, {"x": (2, 2)}, r"tensor x: got the item shape \(2, 2\); expected \(-1,\)"),
        ("free", 1, {"x": (0,)}, r"tensor x: got the item shape \(0,\)"),
        ("half", 1, {"x": (2,)}, r"tensor x: got the item shape \(2,\); expected \(1,\)"),
        ("half", 1, {"z": (2,)}, "half has no tensor z; expected in shapes only x, y"),
        ("text", 1, {}, r"text, tensor x: the size of text \(BYTES\) is not known beforehand"),
    ],
)
def test_what_cannot_be_laid_out_is_refused(
    client: Client, model: str, rows: int, shapes: dict[str, tuple[int, ...]], says: str
) -> None:
    """The message names model and tensor, what it got and what it expected, before any memory is made."""
    with pytest.raises(InvalidRequest, match=says):
        SharedMemory(client, model, rows=rows, shapes=shapes).__enter__()


@pytest.mark.triton
def test_assigning_to_an_input_copies_it_in(client: Client) -> None:
    """inputs["x"] = array fills the memory, converted as an input is; what does not fit changes nothing."""
    with SharedMemory(client, "free", rows=2, shapes={"x": (3,)}) as memory:
        memory.inputs["x"] = np.arange(6, dtype=np.float32).reshape(2, 3)
        assert memory.infer()["y"].tolist() == [[3], [12]]
        memory.inputs["x"] = [[1, 1, 1], [2, 2, 2]]
        memory.inputs["x"] *= 2
        assert memory.infer()["y"].tolist() == [[6], [12]]
        with pytest.raises(InvalidRequest, match=r"got shape \(1, 3\); expected \(2, 3\).*\[:rows\]"):
            memory.inputs["x"] = np.ones((1, 3), np.float32)
        with pytest.raises(InvalidRequest, match="got float64"):
            memory.inputs["x"] = np.ones((2, 3))
        with pytest.raises(InvalidRequest, match="no memory for 'z'; expected of x"):
            memory.inputs["z"] = np.ones((2, 3), np.float32)
        assert memory.infer()["y"].tolist() == [[6], [12]]
        assert list(memory.inputs) == ["x"]
    with pytest.raises(InvalidRequest, match="no memory for 'x'"):
        memory.inputs["x"] = np.ones((2, 3), np.float32)


@pytest.mark.triton
def test_a_client_closed_inside_still_frees_the_memory(client_server: EmbeddedServer) -> None:
    """Leaving the block after the client was closed cannot tell the server, but ends without an error."""
    with Client(client_server.http_url) as client, SharedMemory(client, "half", rows=1):
        client.close()
    with Client(client_server.http_url) as client:
        for region in registered(client_server):
            finished(client._core.ask_at(client.url, "unregister_memory", region["name"], None, 5))
    assert left(client_server) == []


@pytest.mark.triton
def test_wrong_uses_are_refused(client: Client, client_server: EmbeddedServer) -> None:
    """Too many rows, an unknown output or kind, a block inside its own, and a hedging client get one sentence each."""
    with SharedMemory(client, "half", rows=4) as memory:
        for rows in (0, 5):
            with pytest.raises(InvalidRequest, match=f"half: got rows={rows}; expected 1 to 4"):
                memory.infer(rows)
        with pytest.raises(InvalidInput, match="in a with block already"):
            memory.__enter__()
    with pytest.raises(InvalidRequest, match="half has no output z"):
        SharedMemory(client, "half", rows=1, options=Options(outputs=("z",))).__enter__()
    with pytest.raises(InvalidInput, match="expected 'system' or 'cuda'"):
        SharedMemory(client, "half", rows=1, kind="disk")  # type: ignore[arg-type]
    with Client(client_server.http_url, retry=Retry(hedge_after_s=1)) as hedging:
        memory = SharedMemory(hedging, "half", rows=1)
        with pytest.raises(InvalidInput, match="hedge_after_s"):
            memory.__enter__()


@pytest.mark.triton
def test_a_server_that_does_not_see_the_memory_is_named(
    client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Memory that lies elsewhere, as on another host, is refused with the advice; and a full one before that."""
    monkeypatch.setattr(shared_regions, "FOLDER", tmp_path)
    with pytest.raises(InvalidRequest, match=r"Unable to open shared memory region.*expected a server on this host"):
        SharedMemory(client, "half", rows=1).__enter__()
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(shared_regions, "FOLDER", tmp_path / "absent")
    with pytest.raises(NotSupported, match=r"cannot be had in .*absent \(No such file"):
        SharedMemory(client, "half", rows=1).__enter__()


@pytest.mark.parametrize("code", ["501", "StatusCode.UNIMPLEMENTED"])
def test_a_server_that_forbids_it_names_the_flag(code: str) -> None:
    """What Triton 26.04 says by default becomes an error that holds the flag; 2.51 does not know the flag."""
    said = "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable."
    assert "--allow-client-shm=true" in str(translated(InferenceServerException(said, code), "host:1", "region"))


def _gpu() -> bool:
    return Path("/dev/nvidiactl").exists()


@pytest.mark.triton
@pytest.mark.skipif(_gpu(), reason="there is an NVIDIA GPU here")
def test_cuda_memory_without_a_gpu_is_not_supported(client: Client) -> None:
    """One sentence says what is missing, and what to use instead."""
    with pytest.raises(
        NotSupported, match=r"needs an NVIDIA GPU, its driver and cuda-python \(.*\); use kind='system'"
    ):
        SharedMemory(client, "half", rows=1, kind="cuda").__enter__()


@pytest.mark.gpu
@pytest.mark.triton
@pytest.mark.skipif(not _gpu(), reason="there is no NVIDIA GPU here")
def test_cuda_memory_carries_a_request(client: Client) -> None:
    """The tensors go through GPU 0, whole batches and parts of them."""
    with SharedMemory(client, "free", rows=4, shapes={"x": (1000,)}, kind="cuda") as memory:
        memory.inputs["x"][:] = np.arange(4)[:, None]
        assert memory.infer(rows=3)["y"].ravel().tolist() == [0, 1000, 2000]
        memory.inputs["x"][:] = 2
        assert memory.infer()["y"].ravel().tolist() == [2000] * 4
