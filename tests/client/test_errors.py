"""What goes wrong between a client and a server comes as the kind that says what to do, with its cause and place."""

from __future__ import annotations

import asyncio
import builtins
import inspect
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import geventhttpclient
import geventhttpclient.response
import grpc
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
import tritonclient.utils
from tritonclient.utils import InferenceServerException

from tritonbatch.client import (
    AsyncClient,
    Cancelled,
    Client,
    InvalidRequest,
    NotReady,
    Overloaded,
    Protocol,
    ServerError,
    TimedOut,
    Unreachable,
)
from tritonbatch.client.errors import mapped_errors, translated
from tritonbatch.errors import RequestFailed
from tritonbatch.server import EmbeddedServer

GUARD_S = 20.0
"""No call may take longer; all of them end far earlier."""

UNKNOWN = "Request for unknown model: 'm' is not found"
GOING = "Request for unknown model: 'm' has no available versions"
FULL = "[request id: <id_unknown>] Exceeds maximum queue size"
EXPIRED = "Request timeout expired"
STOPPING = "Server is stopping, scheduler for model has stopped accepting new inference requests"
NO_CONTROL = "explicit model load / unload is not allowed if polling is enabled"
NO_POLL = "failed to load 'm', failed to poll from model repository"
STUB = "Stub process 'm_0_0' is not healthy."
DTYPE = "[request id: <id_unknown>] inference input 'x' data-type is 'INT64', but model 'm' expects 'FP32'"
REFUSED = "last error: UNKNOWN: ipv4:127.0.0.1:48349: Failed to connect to remote host: Connection refused"
NO_HTTP2 = "Failed parsing HTTP/2 (Expected SETTINGS frame as the first frame, got frame type 80)"
NO_NAME = "errors resolving no.invalid:8000: [address lookup failed for no.invalid:8000: Domain name not found]"

SAID: list[tuple[str, str, type[RequestFailed], str]] = [
    *((UNKNOWN, code, InvalidRequest, "") for code in ("404", "NOT_FOUND")),
    *((GOING, code, NotReady, "") for code in ("404", "NOT_FOUND")),
    *((DTYPE, code, InvalidRequest, "") for code in ("400", "INVALID_ARGUMENT")),
    *((FULL, code, Overloaded, "") for code in ("503", "UNAVAILABLE")),
    *((EXPIRED, code, TimedOut, "") for code in ("503", "UNAVAILABLE")),
    *((STOPPING, code, NotReady, "") for code in ("503", "UNAVAILABLE")),
    *((NO_CONTROL, code, InvalidRequest, "--model-control-mode=explicit") for code in ("503", "UNAVAILABLE")),
    ("This API is restricted, expecting header 'key'", "403", InvalidRequest, "headers="),
    ("This protocol is restricted, expecting header 'triton-key'", "UNAVAILABLE", InvalidRequest, "headers="),
    *((NO_POLL, code, InvalidRequest, "server's log") for code in ("500", "INTERNAL")),
    *((STUB, code, ServerError, "unload and load the model") for code in ("500", "INTERNAL")),
    *(("ValueError: x is over 9", code, ServerError, "") for code in ("500", "INTERNAL")),
    # A model may say anything; only under the server's own codes are words taken for the server's.
    *(("ValueError: Request timeout expired", code, ServerError, "") for code in ("500", "INTERNAL")),
    *(("OSError: Connection refused", code, ServerError, "") for code in ("500", "INTERNAL")),
    ("Unable to open shared memory region: '/r'", "500", InvalidRequest, ""),
    ("Invalid shared memory region: '/r'", "INTERNAL", InvalidRequest, ""),
    ("shared memory size specified with the request for output 'y' (2 bytes)", "500", InvalidRequest, ""),
    ("Failed to increase the shared memory pool size", "INTERNAL", ServerError, ""),
    ("shared memory is disabled", "UNAVAILABLE", InvalidRequest, "--allow-client-shm=true"),
    ("Method Not Allowed", "405", InvalidRequest, ""),
    ("<html>Bad Gateway</html>", "502", Unreachable, ""),
    ("nothing more", "503", NotReady, ""),
    (f"failed to connect to all addresses; {REFUSED}", "UNAVAILABLE", Unreachable, "address and port"),
    ("failed to connect to all addresses; ipv4:127.0.0.1:5: Socket closed", "UNAVAILABLE", Unreachable, "gRPC port"),
    ("recvmsg:Connection reset by peer (104)", "UNAVAILABLE", Unreachable, ""),
    ("Stream removed (Socket closed)", "UNAVAILABLE", Unreachable, "gRPC port"),
    (NO_HTTP2, "UNAVAILABLE", Unreachable, "gRPC port"),
    (NO_NAME, "UNAVAILABLE", Unreachable, "address"),
    ("Received http2 header with status: 404", "UNIMPLEMENTED", Unreachable, "gRPC port"),
    ("unsupported", "UNIMPLEMENTED", InvalidRequest, ""),
    ("unsupported", "501", InvalidRequest, ""),
    ("Deadline Exceeded", "DEADLINE_EXCEEDED", TimedOut, ""),
    ("Locally cancelled by application!", "CANCELLED", Cancelled, ""),
]


@pytest.mark.parametrize(("text", "code", "kind", "step"), SAID)
def test_what_the_server_says_becomes_what_to_do(text: str, code: str, kind: type[RequestFailed], step: str) -> None:
    """Text and code of the real server give the kind, its words, and the next step, through every library alike."""
    errors: list[Exception] = [InferenceServerException(text, code)]
    if not code.isdigit():
        errors += [InferenceServerException(text, f"StatusCode.{code}"), _grpc_error(grpc.StatusCode[code], text)]
    for error in errors:
        ours = translated(error, "host:8000", "m")
        assert type(ours) is kind
        assert all(part in str(ours) for part in ("host:8000", "'m'", text.rstrip("."), step))


@pytest.mark.parametrize("message", [None, "", 5, {"code": 7}])
def test_a_refusal_without_readable_words_is_told_too(message: Any) -> None:
    """Whatever stands where the server's message should be, the error is one of ours."""
    assert type(translated(InferenceServerException(message, "400"), "host:8000")) is InvalidRequest


def _grpc_error(code: grpc.StatusCode, text: str = "message") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), text)


MODULES = (
    *(tritonclient.utils, tritonclient.http, tritonclient.http.aio, tritonclient.grpc, tritonclient.grpc.aio),
    *(grpc, grpc.aio, geventhttpclient, geventhttpclient.response, socket, ssl),
)
SKIPPED = {"_GiveupOnSendfile": "socket.sendfile, which nothing here calls, catches it itself"}


def _exceptions(module: ModuleType, base: type[Exception] = Exception) -> list[type[Exception]]:
    found: list[type[Any]] = [kind for _, kind in inspect.getmembers(module, inspect.isclass) if issubclass(kind, base)]
    return [kind for kind in found if kind.__name__ not in SKIPPED]


FOREIGN_KINDS = sorted(
    {*(kind for module in MODULES for kind in _exceptions(module)), *_exceptions(builtins, OSError)},
    key=lambda kind: f"{kind.__module__}.{kind.__qualname__}",
)


def test_the_walk_through_the_libraries_finds_their_errors() -> None:
    """The list of foreign errors is no empty promise: each library's best known error is in it."""
    names = {kind.__name__ for kind in FOREIGN_KINDS}
    assert {"InferenceServerException", "AioRpcError", "HTTPParseError", "gaierror", "SSLEOFError"} <= names
    assert len(FOREIGN_KINDS) > 30


@pytest.mark.parametrize("kind", FOREIGN_KINDS, ids=lambda kind: f"{kind.__module__}.{kind.__qualname__}")
def test_no_exception_of_the_libraries_escapes(kind: type[Exception]) -> None:
    """Every exception class of tritonclient, gRPC, geventhttpclient and the sockets becomes ours, with its cause."""
    error = _grpc_error(grpc.StatusCode.UNKNOWN) if kind is grpc.aio.AioRpcError else kind("message")
    with pytest.raises(RequestFailed, match="host:8000") as caught, mapped_errors("host:8000", "m"):
        raise error
    assert caught.value.__cause__ is error


@pytest.mark.parametrize(
    "error",
    [
        *(KeyError("outputs"), AttributeError("get"), StopIteration(), RecursionError(), OverflowError(), TypeError()),
        *(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), struct.error("short"), IndexError()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_nonsense_that_cannot_be_decoded_is_the_servers_error(error: Exception) -> None:
    """What reading a malformed answer raises becomes a ServerError with its cause."""
    with pytest.raises(ServerError) as caught, mapped_errors("host:8000"):
        raise error
    assert caught.value.__cause__ is error


def test_cancellation_and_interrupts_pass_untouched() -> None:
    """A task's cancellation and Ctrl-C are not the server's doing and stay what they are."""
    for error in (asyncio.CancelledError(), KeyboardInterrupt()):
        with pytest.raises(type(error)), mapped_errors("host:8000"):
            raise error


def test_every_status_is_mapped() -> None:
    """Every gRPC status and every HTTP status from 400 on becomes ours; no 4xx blames the server."""
    for code in grpc.StatusCode:
        assert isinstance(translated(_grpc_error(code), "host:8001"), RequestFailed)
    for status in range(400, 600):
        ours = translated(InferenceServerException("message", str(status)), "host:8000")
        assert isinstance(ours, RequestFailed)
        assert not (status < 500 and isinstance(ours, ServerError))


# ---- The same, provoked


@dataclass(frozen=True)
class Way:
    """One of the four ways to speak to a server."""

    protocol: Protocol
    awaited: bool

    def url(self, server: EmbeddedServer) -> str:
        """Where *server* is spoken to in this way."""
        return server.grpc_url if self.protocol == "grpc" else server.http_url

    def outcomes(self, url: str, call: Call, *, times: int = 1, timeout_s: float = GUARD_S) -> list[Any]:
        """Do *call* so many times at once on one client that sends everything once; results or errors."""
        started = time.monotonic()
        if self.awaited:
            outcomes = asyncio.run(self._awaited(url, call, times, timeout_s))
        else:
            with (
                Client(url, protocol=self.protocol, retry=None, timeout_s=timeout_s) as client,
                ThreadPoolExecutor(times) as threads,
            ):
                futures = [threads.submit(call, client) for _ in range(times)]
                outcomes = [future.exception(GUARD_S) or future.result() for future in futures]
        assert time.monotonic() - started < GUARD_S
        return outcomes

    async def _awaited(self, url: str, call: Call, times: int, timeout_s: float) -> list[Any]:
        async with AsyncClient(url, protocol=self.protocol, retry=None, timeout_s=timeout_s) as client:
            return await asyncio.gather(*(call(client) for _ in range(times)), return_exceptions=True)

    def failure(self, url: str, call: Call, *, model: str = "failing", timeout_s: float = GUARD_S) -> RequestFailed:
        """The error of one *call*, which has a cause and names the address and the *model*."""
        (error,) = self.outcomes(url, call, timeout_s=timeout_s)
        assert isinstance(error, RequestFailed), error
        assert error.__cause__ is not None
        assert url in str(error)
        assert repr(model) in str(error)
        return error


Call = Callable[[Any], Any]


def _infer(model: str, value: float) -> Call:
    return lambda client: client.infer(model, {"x": np.full((1, 1), value, np.float32)})


def _metadata(client: Any) -> Any:
    return client.metadata("failing")


@pytest.fixture(
    params=[
        Way("http", awaited=False),
        Way("http", awaited=True),
        Way("grpc", awaited=False),
        Way("grpc", awaited=True),
    ],
    ids=["http", "http-async", "grpc", "grpc-async"],
)
def way(request: pytest.FixtureRequest) -> Way:
    """Each protocol, from threads and from asyncio."""
    chosen: Way = request.param
    return chosen


@pytest.fixture
def url(way: Way, client_server: EmbeddedServer) -> str:
    """The shared server's address, for this way."""
    return way.url(client_server)


@pytest.fixture
def idle_sleeper(client_server: EmbeddedServer) -> Iterator[None]:
    """Leaves `sleeper` only when nothing that a test sent is running or queued any more."""
    yield
    with Client(client_server.grpc_url, protocol="grpc", retry=None) as client:
        for _ in range(100):
            try:
                _infer("sleeper", 0.0)(client)
            except Overloaded:
                time.sleep(0.1)
            else:
                return
    raise AssertionError("the sleeper is still busy")


@pytest.mark.triton
def test_an_unknown_model_is_the_callers_mistake(way: Way, url: str) -> None:
    """A model that is not there is an InvalidRequest, whatever is asked of it."""
    for call in (_infer("ghost", 1.0), lambda client: client.config("ghost"), lambda client: client.load("ghost")):
        assert type(way.failure(url, call, model="ghost")) is InvalidRequest


@pytest.mark.triton
def test_a_model_that_is_not_loaded_is_not_ready(way: Way, url: str, client_server: EmbeddedServer) -> None:
    """A model that was unloaded may be loaded again: NotReady, and so to be tried again."""
    with Client(client_server.http_url) as owner:
        owner.unload("half")
        try:
            assert type(way.failure(url, _infer("half", 1.0), model="half")) is NotReady
        finally:
            owner.load("half")


@pytest.mark.triton
def test_a_full_queue_is_overload(way: Way, url: str, idle_sleeper: None) -> None:
    """Of more requests at once than run and queue, those beyond are Overloaded and the others answered."""
    outcomes = way.outcomes(url, _infer("sleeper", 0.3), times=8)
    refused = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
    assert 1 <= len(refused) <= 5
    assert {type(error) for error in refused} == {Overloaded}
    assert all(url in str(error) and "'sleeper'" in str(error) and error.__cause__ for error in refused)


@pytest.mark.triton
def test_a_deadline_that_passes_is_timed_out(way: Way, url: str, idle_sleeper: None) -> None:
    """Too little time for a slow model is TimedOut, for the request that runs as for the one in the queue."""
    # Two, as a third that comes before the first has left the queue finds it full.
    outcomes = way.outcomes(url, _infer("sleeper", 1.0), times=2, timeout_s=0.5)
    assert [type(error) for error in outcomes] == [TimedOut] * 2
    assert all(url in str(error) and "'sleeper'" in str(error) and error.__cause__ for error in outcomes)


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_queues_own_timeout_is_timed_out(
    protocol: Protocol, client_server: EmbeddedServer, idle_sleeper: None
) -> None:
    """A request that the server drops from its queue for its age is TimedOut, also for users of tritonclient."""
    module: Any = tritonclient.grpc if protocol == "grpc" else tritonclient.http
    address = client_server.grpc_url if protocol == "grpc" else client_server.http_url
    tensor = module.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.ones((1, 1), np.float32))
    with (
        Client(client_server.grpc_url, protocol="grpc", retry=None) as client,
        ThreadPoolExecutor(2) as threads,
        module.InferenceServerClient(address) as plain,
    ):
        ahead = [threads.submit(_infer("sleeper", 1.0), client) for _ in range(2)]
        time.sleep(0.3)  # both are there: one runs, one waits
        with pytest.raises(TimedOut, match=EXPIRED), mapped_errors(address, "sleeper"):
            plain.infer("sleeper", [tensor], timeout=100_000)
        assert all(future.exception(GUARD_S) is None for future in ahead)


@pytest.mark.triton
def test_a_model_that_raises_is_the_servers_error(way: Way, url: str) -> None:
    """What a model raises comes as a ServerError with the model's own words."""
    error = way.failure(url, _infer("failing", 10.0))
    assert type(error) is ServerError
    assert "ValueError: x is over 9" in str(error)


@pytest.mark.triton
@pytest.mark.parametrize("way", [Way("http", awaited=True), Way("grpc", awaited=False)], ids=["http-async", "grpc"])
def test_a_crashed_stub_is_the_servers_error(way: Way, url: str, client_server: EmbeddedServer) -> None:
    """A model whose process died is a ServerError that says what to do, and doing it helps."""
    with Client(client_server.http_url) as owner:
        try:
            error = way.failure(url, _infer("crash", 10.0), model="crash")
        finally:
            owner.unload("crash")  # loading alone would leave a model whose files did not change as it is
            owner.load("crash")
        assert type(error) is ServerError
        assert "unload and load the model" in str(error)
        assert owner.infer("crash", {"x": np.ones((1, 1), np.float32)})["y"] == 1.0


@pytest.mark.triton
def test_the_other_protocols_port_is_unreachable(way: Way, client_server: EmbeddedServer) -> None:
    """With HTTP and gRPC swapped nothing can be spoken to, and the message sends to the port."""
    swapped = client_server.http_url if way.protocol == "grpc" else client_server.grpc_url
    error = way.failure(swapped, _metadata)
    assert type(error) is Unreachable
    assert "port" in str(error)


def test_a_host_that_has_no_address_is_unreachable(way: Way) -> None:
    """A name that no one knows is Unreachable."""
    assert type(way.failure("no-such-host.invalid:8000", _metadata)) is Unreachable


def test_a_port_where_nothing_listens_is_unreachable(way: Way) -> None:
    """A refused connection is Unreachable."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        assert type(way.failure(f"localhost:{holder.getsockname()[1]}", _metadata)) is Unreachable


# ---- Servers that are none


def _close(connection: socket.socket) -> None:
    connection.close()


def _read_and_close(connection: socket.socket) -> None:
    connection.recv(65536)
    connection.close()


def _reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def _says(answer: bytes) -> Callable[[socket.socket], None]:
    def say(connection: socket.socket) -> None:
        connection.recv(65536)
        connection.sendall(answer)
        connection.shutdown(socket.SHUT_WR)
        connection.close()

    return say


def _greets(greeting: bytes) -> Callable[[socket.socket], None]:
    """Leaves the connection open after its first words: the listener keeps it until the test ends."""
    return lambda connection: connection.sendall(greeting)


@contextmanager
def _listening(behaviour: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that treats each connection by *behaviour*; its address."""
    kept: list[socket.socket] = []

    def serve() -> None:
        for _ in range(100):
            try:
                connection, _ = listener.accept()
                connection.settimeout(GUARD_S)
                kept.append(connection)
                behaviour(connection)
            except OSError:
                if listener.fileno() < 0:
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # wakes accept
            listener.close()
            for connection in kept:
                connection.close()
            thread.join(GUARD_S)
    assert not thread.is_alive()


OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BROKEN: dict[str, tuple[Callable[[socket.socket], None], type[RequestFailed]]] = {
    "closed at once": (_close, Unreachable),
    "closed halfway": (_read_and_close, Unreachable),
    "reset": (_reset, Unreachable),
    "garbage": (_says(b"SSH-2.0-OpenSSH_9.6\r\n"), Unreachable),
    "truncated body": (_says(OK + b'Content-Length: 500\r\n\r\n{"nam'), Unreachable),
    "not JSON": (_says(OK + b"Content-Length: 5\r\n\r\nhello"), ServerError),
    "JSON of something else": (_says(OK + b"Content-Length: 14\r\n\r\n" + b'{"inputs":[5]}'), ServerError),
    "a proxy without its server": (_says(b"HTTP/1.1 502 Bad Gateway\r\nContent-Length: 6\r\n\r\n<html>"), Unreachable),
    "503 without a word": (_says(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n"), NotReady),
}
"""What the server does, and the kind over HTTP; over gRPC none of these is a server at all, so Unreachable."""


@pytest.mark.parametrize(("behaviour", "kind"), BROKEN.values(), ids=BROKEN.keys())
def test_servers_that_break_off_or_talk_nonsense(
    way: Way, behaviour: Callable[[socket.socket], None], kind: type[RequestFailed]
) -> None:
    """Broken connections and nonsense come as one of ours, with the cause, the address and the model."""
    with _listening(behaviour) as address:
        error = way.failure(address, _metadata)
    assert type(error) is (kind if way.protocol == "http" else Unreachable)


def test_a_server_that_never_answers_is_timed_out(way: Way) -> None:
    """A server that takes the connection and stays silent costs the deadline and no more."""
    empty_settings = bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])  # HTTP/2 begins with this frame, or gRPC is not connected yet
    with _listening(_greets(empty_settings if way.protocol == "grpc" else b"")) as address:
        assert type(way.failure(address, _metadata, timeout_s=0.5)) is TimedOut
