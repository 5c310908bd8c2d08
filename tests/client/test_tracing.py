"""Spans of OpenTelemetry around requests: one for each, true to what happened, and carried on to the server."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode, Tracer

from tritonbatch.client import AsyncClient, Client, InvalidRequest, Options, Overloaded, Protocol, Retry, ServerError
from tritonbatch.errors import NotSupported
from tritonbatch.server import EmbeddedServer

X = {"x": np.ones((3, 2), np.float32)}


class Traces:
    """A tracer, and the spans that ended."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer: Tracer = provider.get_tracer("test")

    def ended(self) -> list[ReadableSpan]:
        """All spans so far, in the order of their ends."""
        return list(self._exporter.get_finished_spans())


@pytest.fixture
def traces() -> Traces:
    """An own tracer, without any global provider."""
    return Traces()


def url_of(server: EmbeddedServer, protocol: Protocol) -> str:
    """The server's address for *protocol*."""
    return server.grpc_url if protocol == "grpc" else server.http_url


def noted_headers(client: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """The headers of every exchange from now on."""
    seen: list[dict[str, str]] = []
    exchange = client._core.transport.exchange

    async def noting(address: str, call: Any, timeout_s: float) -> Any:
        seen.append(dict(call.headers))
        return await exchange(address, call, timeout_s)

    monkeypatch.setattr(client._core.transport, "exchange", noting)
    return seen


def traceparent(span: ReadableSpan) -> str:
    """The header that makes the server's spans children of *span*."""
    context = span.get_span_context()
    assert context is not None
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_is_one_span_that_the_server_continues(
    client_server: EmbeddedServer, traces: Traces, protocol: Protocol, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The span has the model's name, the request's facts and no error; its id leaves with the request alone."""
    options = Options(version="1", request_id="id7", priority=1)
    with Client(url_of(client_server, protocol), protocol=protocol, tracer=traces.tracer) as client:
        client.contract("free", "1")
        seen = noted_headers(client, monkeypatch)
        client.infer("free", X, options=options)
        client.infer("free", X)
    first, second = traces.ended()
    assert (first.name, first.kind, first.status.status_code) == ("infer free", SpanKind.CLIENT, StatusCode.UNSET)
    facts = {"rpc.system": "triton", "triton.model": "free", "triton.rows": 3}
    asked = {"triton.version": "1", "triton.request_id": "id7", "triton.priority": 1}
    assert dict(first.attributes or {}) == facts | asked
    assert dict(second.attributes or {}) == facts
    carried = [each["traceparent"] for each in seen if "traceparent" in each]
    assert carried == [traceparent(first), traceparent(second)]


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_request_in_asyncio_is_one_span_as_well(
    client_server: EmbeddedServer, traces: Traces, protocol: Protocol
) -> None:
    """Concurrent requests are spans beside each other under the caller's own span."""

    async def steps() -> None:
        async with AsyncClient(url_of(client_server, protocol), protocol=protocol, tracer=traces.tracer) as client:
            with traces.tracer.start_as_current_span("caller"):
                await asyncio.gather(*[client.infer("free", X) for _ in range(5)])

    asyncio.run(steps())
    *spans, caller = traces.ended()
    assert [each.name for each in spans] == ["infer free"] * 5
    assert {each.parent.span_id for each in spans if each.parent} == {caller.get_span_context().span_id}  # type: ignore[union-attr]


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_failed_request_is_a_failed_span(client_server: EmbeddedServer, traces: Traces, protocol: Protocol) -> None:
    """The span has the status of an error and the exception; what was refused before it left has no span."""
    with Client(url_of(client_server, protocol), protocol=protocol, tracer=traces.tracer) as client:
        with pytest.raises(ServerError):
            client.infer("failing", {"x": np.full((1, 1), 99, np.float32)})
        with pytest.raises(InvalidRequest):
            client.infer("failing", {"x": np.ones((1, 7), np.float32)})
    (span,) = traces.ended()
    assert span.status.status_code == StatusCode.ERROR
    assert "x is over 9" in (span.status.description or "")
    assert [event.name for event in span.events] == ["exception"]


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_the_parts_of_a_split_request_have_one_parent(
    client_server: EmbeddedServer, traces: Traces, protocol: Protocol
) -> None:
    """infer_many makes a span of every request, in whichever thread it is sent, under the caller's span."""
    retry = Retry(hedge_after_s=5.0)
    with (
        Client(url_of(client_server, protocol), protocol=protocol, tracer=traces.tracer, retry=retry) as client,
        traces.tracer.start_as_current_span("caller"),
    ):
        client.infer_many("free", {"x": np.ones((64, 1), np.float32)}, in_flight=4)
    *spans, caller = traces.ended()
    assert len(spans) == 8
    assert {each.parent and each.parent.span_id for each in spans} == {caller.get_span_context().span_id}  # type: ignore[union-attr]


class Refusing:
    """An HTTP server that speaks as Triton does, refuses some requests first, and keeps the headers it saw."""

    def __init__(self) -> None:
        self.refusals = 0
        self.paths: list[str] = []
        self.parents: list[str | None] = []
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self.server.daemon_threads = True
        self.url = f"127.0.0.1:{self.server.server_port}/triton/east"
        threading.Thread(target=self.server.serve_forever, args=(0.02,), daemon=True).start()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        tensor = {"name": "x", "datatype": "FP32", "shape": [-1, 2]}
        answers: dict[str, Any] = {
            "config": {"name": "m", "max_batch_size": 8},
            "m": {"name": "m", "versions": ["1"], "inputs": [tensor], "outputs": [{**tensor, "name": "y"}]},
            "infer": {"model_name": "m", "model_version": "1", "outputs": []},
        }
        refusing = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                refusing.paths.append(self.path)
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, content = 200, answers[self.path.rpartition("/")[2]]
                if self.command == "POST":
                    refusing.parents.append(self.headers["traceparent"])
                    if refusing.refusals > 0:
                        refusing.refusals -= 1
                        status, content = 503, {"error": "Exceeds maximum queue size"}
                body = json.dumps(content).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_POST = do_GET  # noqa: N815 - the base class names it so

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


@pytest.fixture
def refusing() -> Iterator[Refusing]:
    """A server that counts and refuses."""
    running = Refusing()
    yield running
    running.server.shutdown()
    running.server.server_close()


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_retries_are_within_one_span(refusing: Refusing, traces: Traces, kind: str) -> None:
    """Refused twice and then answered, a request is one span without error, whose id each attempt has on the wire."""
    refusing.refusals = 2
    retry = Retry(attempts=3, first_wait_s=0.001)
    _send(refusing, traces, retry, kind)
    (span,) = traces.ended()
    assert span.status.status_code == StatusCode.UNSET
    assert refusing.parents == [traceparent(span)] * 3


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def test_the_last_failure_is_that_of_the_span(refusing: Refusing, traces: Traces, kind: str) -> None:
    """When all attempts are refused the span fails with what the caller gets."""
    refusing.refusals = 9
    with pytest.raises(Overloaded):
        _send(refusing, traces, Retry(attempts=2, first_wait_s=0.001), kind)
    (span,) = traces.ended()
    assert span.status.status_code == StatusCode.ERROR
    assert len(refusing.parents) == 2


def test_a_base_path_stands_before_every_path(refusing: Refusing, traces: Traces) -> None:
    """Behind a proxy the address may go on after the port; questions and requests both keep to it."""
    _send(refusing, traces, Retry(), "blocking")
    models = "/triton/east/v2/models/m"
    assert refusing.paths == [models, f"{models}/config", f"{models}/infer"]


def _send(refusing: Refusing, traces: Traces, retry: Retry, kind: str) -> None:
    """Send one request with either kind of client."""
    if kind == "blocking":
        with Client(refusing.url, tracer=traces.tracer, retry=retry, timeout_s=20) as client:
            client.send(client.request("m", X))
        return

    async def steps() -> None:
        async with AsyncClient(refusing.url, tracer=traces.tracer, retry=retry, timeout_s=20) as client:
            await client.send(await client.request("m", X))

    asyncio.run(steps())


def test_a_hedge_carries_the_same_span(refusing: Refusing, traces: Traces) -> None:
    """Both requests of a hedged one belong to one span."""
    refusing.refusals = 0
    _send(refusing, traces, Retry(hedge_after_s=0.0), "asyncio")
    (span,) = traces.ended()
    assert set(refusing.parents) == {traceparent(span)}


def test_without_a_tracer_nothing_of_opentelemetry_is_imported(refusing: Refusing) -> None:
    """Importing, making and using a client leaves the package alone."""
    program = (
        "import sys, numpy as np\n"
        "from tritonbatch.client import AsyncClient, Client\n"
        "with Client(sys.argv[1]) as client:\n"
        "    client.send(client.request('m', {'x': np.ones((1, 2), np.float32)}))\n"
        "print([name for name in sys.modules if 'opentelemetry' in name])\n"
    )
    done = subprocess.run([sys.executable, "-c", program, refusing.url], capture_output=True, timeout=60, check=False)
    assert done.stdout.decode().strip() == "[]", done.stderr.decode()
    assert refusing.parents == [None]


def test_a_tracer_without_opentelemetry_is_refused_with_the_extra_to_install(
    refusing: Refusing, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody's own tracer needs the package for the header; the message says how to get it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.propagate", None)
    with pytest.raises(NotSupported, match=r"install tritonbatch\[tracing\]"):
        _send(refusing, traces, Retry(), "blocking")
