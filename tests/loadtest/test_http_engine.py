"""HTTP in gevent's hub: against the real server, and against one that a test scripts byte by byte."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn, Self

import gevent
import gevent.event
import numpy as np
import psutil
import pytest
from geventhttpclient.response import HTTPParseError
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.client import Client
from tritonbatch.client.client import language_of
from tritonbatch.client.http_wire import ReplyParser
from tritonbatch.errors import RequestFailed
from tritonbatch.loadtest import http_engine
from tritonbatch.loadtest.http_engine import HttpEngine, _is_whole_success
from tritonbatch.loadtest.records import OK
from tritonbatch.loadtest.statuses import FAILED, REJECTED, TIMEOUT
from tritonbatch.server import EmbeddedServer

PAYLOAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nabc"
GOOD = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n2\r\nlo\r\n0\r\n\r\n"
CLOSING = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"
GO_ON = b"HTTP/1.1 100 Continue\r\n\r\n"
NO_TIME_LINGERS = struct.pack("ii", 1, 0)

Handle = Callable[[socket.socket], None]


def refusal(status: int, said: str) -> bytes:
    """An answer of Triton's with an error."""
    body = b'{"error":"%s"}' % said.encode()
    return b"HTTP/1.1 %d No\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s" % (
        status,
        len(body),
        body,
    )


def requests_on(connection: socket.socket) -> Iterator[bytes]:
    """Every request that comes over *connection*, whole, until its other end closes it."""
    data = bytearray()
    while piece := connection.recv(65536):
        data += piece
        end = data.find(b"\r\n\r\n") + 4
        length = int(data[:end].partition(b"Content-Length: ")[2].partition(b"\r\n")[0] or len(data) + 1)
        if len(data) >= end + length:
            yield bytes(data)
            data.clear()


class Scripted:
    """A server that treats each connection as *handle* says, each in a thread; ``accepted`` counts them."""

    def __init__(self, handle: Handle) -> None:
        self.accepted = 0
        self._handle = handle
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._threads: list[threading.Thread] = []
        self._connections: list[socket.socket] = []
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"

    def __enter__(self) -> Self:
        """Listen."""
        self._accepting = threading.Thread(target=self._accept, daemon=True)
        self._accepting.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Close every connection and wait for the threads."""
        self.close()
        for connection in list(self._connections):
            with_ignored(connection.shutdown, socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def close(self) -> None:
        """Listen no more."""
        with_ignored(self._listener.shutdown, socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(10)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.accepted += 1
            self._connections.append(connection)
            self._threads.append(threading.Thread(target=self._serve, args=(connection,), daemon=True))
            self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            with_ignored(self._handle, connection)


def with_ignored(call: Callable[..., Any], *given: Any) -> None:
    """Call, whatever the state of the socket."""
    try:
        call(*given)
    except OSError:
        return


def engine_for(address: str) -> HttpEngine:
    """An engine that asks for the model m."""
    return HttpEngine(address, language_of("http"), {}, "m")


class Endings:
    """Hears of every request that ended, from *engine*."""

    def __init__(self, engine: HttpEngine) -> None:
        self.heard: list[tuple[int, int]] = []
        self._engine = engine
        self._news = gevent.event.Event()
        engine.done = self._done

    def _done(self, sequence: int, status: int) -> None:
        self.heard.append((sequence, status))
        self._news.set()

    def wait(self, count: int) -> None:
        """Until *count* requests have ended."""
        with gevent.Timeout(30):
            while len(self.heard) < count:
                self._news.wait()
                self._news.clear()

    def of(self, payloads: Sequence[bytes]) -> list[int]:
        """Send all of *payloads* at once: the status of each, which must come exactly once."""
        first = len(self.heard)
        for sequence, payload in enumerate(payloads, start=first):
            self._engine.start(sequence, payload)
        self.wait(first + len(payloads))
        gevent.sleep(0.01)
        news = dict(self.heard[first:])
        assert sorted(news) == list(range(first, first + len(payloads)))
        assert len(self.heard) == first + len(payloads)
        return [news[sequence] for sequence in sorted(news)]


@contextmanager
def facing(handle: Handle) -> Iterator[tuple[Scripted, HttpEngine, Endings]]:
    """A scripted server, an engine that speaks to it, and who hears how requests end; all are closed in the end."""
    with Scripted(handle) as scripted:
        engine = engine_for(scripted.address)
        yield scripted, engine, Endings(engine)
        engine.give_up()


def answering(*pieces: bytes, then: str = "") -> Handle:
    """Answers every request in these *pieces*; *then* the connection is closed, or reset."""

    def handle(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in requests_on(connection):
            for number, piece in enumerate(pieces):
                if number:
                    time.sleep(0.002)
                connection.sendall(piece)
            if then == "reset":
                time.sleep(0.02)
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_TIME_LINGERS)
            if then:
                return

    return handle


def split(data: bytes) -> tuple[bytes, ...]:
    """Each byte on its own."""
    return tuple(data[at : at + 1] for at in range(len(data)))


@pytest.mark.parametrize(
    ("handle", "status", "kept"),
    [
        pytest.param(answering(GOOD), OK, True, id="in one piece"),
        pytest.param(answering(*split(GOOD)), OK, True, id="split at every byte"),
        pytest.param(answering(GO_ON + GOOD), OK, True, id="100 and the answer at once"),
        pytest.param(answering(GO_ON, *split(GOOD)), OK, True, id="100, then the answer"),
        pytest.param(answering(CHUNKED), OK, True, id="chunked"),
        pytest.param(answering(*split(CHUNKED)), OK, True, id="chunked, split at every byte"),
        pytest.param(answering(GOOD.replace(b"Content-L", b"content-l")), OK, True, id="lower case"),
        pytest.param(answering(CLOSING, then="close"), OK, False, id="Connection: close"),
        pytest.param(answering(CLOSING), OK, False, id="Connection: close, left to the client"),
        pytest.param(answering(b"HTTP/1.1 200 OK\r\n\r\nhello", then="close"), OK, False, id="ends where it is closed"),
        pytest.param(answering(GOOD, then="reset"), OK, False, id="reset after the answer"),
        pytest.param(answering(refusal(400, "unexpected shape")), FAILED, True, id="400"),
        pytest.param(answering(refusal(500, "the model failed")), FAILED, True, id="500"),
        pytest.param(answering(*split(refusal(500, "it failed"))), FAILED, True, id="500, split at every byte"),
        pytest.param(answering(refusal(503, "[id] Exceeds maximum queue size")), REJECTED, True, id="queue full"),
        pytest.param(answering(refusal(503, "Request timeout expired")), TIMEOUT, True, id="queue timeout"),
        pytest.param(answering(refusal(503, "Server is stopping")), FAILED, True, id="stopping"),
        pytest.param(answering(b"HTTP/1.1 502 Bad\r\nContent-Length: 4\r\n\r\nhtml"), FAILED, True, id="a proxy's"),
        pytest.param(answering(b"\x00\x01 nonsense\r\n\r\n"), FAILED, False, id="garbage"),
        pytest.param(answering(b"", then="close"), FAILED, False, id="closed without an answer"),
        pytest.param(answering(GOOD[:-2], then="close"), FAILED, False, id="closed within the body"),
        pytest.param(answering(GOOD[:20], then="close"), FAILED, False, id="closed within the head"),
        pytest.param(answering(GO_ON, then="close"), FAILED, False, id="closed after 100"),
        pytest.param(answering(b"", then="reset"), FAILED, False, id="reset before the answer"),
        pytest.param(answering(GOOD[:-2], then="reset"), FAILED, False, id="reset within the answer"),
        pytest.param(lambda _: None, FAILED, False, id="closed at once"),
    ],
)
def test_an_answer_has_its_status_and_ends_its_request_once(handle: Handle, status: int, *, kept: bool) -> None:
    """Two rounds of three requests at once: each ends once with the right status; a sound connection is used again."""
    with facing(handle) as (scripted, engine, endings):
        for _ in range(2):
            assert endings.of([PAYLOAD] * 3) == [status] * 3
            gevent.sleep(0.05)
        assert len(engine._idle) == len(engine._all) == (3 if kept else 0)
        assert scripted.accepted - 1 == (3 if kept else 6), "less one by which the engine looks for the server"


def test_large_requests_reach_a_slow_reader_whole() -> None:
    """A payload beyond every buffer is written in several sends, and arrives as it was."""
    body = np.random.default_rng(0).bytes(8_000_000)
    payload = PAYLOAD.replace(b"Content-Length: 3", b"Content-Length: %d" % len(body)).removesuffix(b"abc") + body
    got: list[bytes] = []

    def handle(connection: socket.socket) -> None:
        time.sleep(0.1)
        for request in requests_on(connection):
            got.append(request)
            connection.sendall(GOOD)

    with facing(handle) as (_, engine, endings):
        engine.start(0, payload)
        assert engine._all.copy().pop()._unsent, "the test is about what one send does not take"
        endings.wait(1)
        assert endings.of([payload, PAYLOAD]) == [OK, OK]
    assert sorted(map(len, got)) == sorted(map(len, [payload, payload, PAYLOAD]))
    assert set(got) == {payload, PAYLOAD}


def test_a_refusal_before_the_whole_request_was_read_is_heard() -> None:
    """A server that answers 400 to the head, and reads no more: the request fails, its connection is given up."""

    def handle(connection: socket.socket) -> None:
        if connection.recv(1000):
            connection.sendall(refusal(400, "too large"))
            connection.settimeout(10)
            time.sleep(0.3)

    with facing(handle) as (_, engine, endings):
        assert endings.of([PAYLOAD + bytes(8_000_000)]) == [FAILED]
        assert not engine._all


def test_a_connection_closed_while_idle_is_not_used_again() -> None:
    """The server closes an idle connection: the next request takes a new one."""
    with facing(answering(GOOD, then="close")) as (scripted, engine, endings):
        assert endings.of([PAYLOAD]) == [OK]
        gevent.sleep(0.1)
        assert endings.of([PAYLOAD]) == [OK]
        assert scripted.accepted == 3
        time.sleep(0.1)  # closed, and the hub could not see it yet: whatever becomes of the request, it ends once
        assert endings.of([PAYLOAD])[0] in {OK, FAILED}
        gevent.sleep(0.1)
        assert not engine._all


def test_where_nothing_listens_is_said_at_once() -> None:
    """An address that refuses connections makes no engine."""
    with Scripted(answering(GOOD)) as scripted:
        scripted.close()
        with pytest.raises(RequestFailed, match="Nothing answers at 127"):
            engine_for(scripted.address)


def test_a_server_that_has_gone_fails_each_request() -> None:
    """Refused connections end their requests as failed, one by one."""
    with facing(answering(GOOD)) as (scripted, engine, endings):
        scripted.close()
        assert endings.of([PAYLOAD] * 5) == [FAILED] * 5
        assert not engine._all


def test_without_file_descriptors_requests_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    """When no socket can be made the request fails, and the run goes on."""

    def none_left(*_: object) -> NoReturn:
        raise OSError(24, "Too many open files")

    with facing(answering(GOOD)) as (_, _, endings):
        assert endings.of([PAYLOAD]) == [OK]
        monkeypatch.setattr(http_engine, "_native_socket", none_left)
        assert sorted(endings.of([PAYLOAD] * 3)) == sorted([OK, FAILED, FAILED])


@pytest.mark.triton
@pytest.mark.parametrize("read_bytes", [65536, 40])
def test_thousands_of_requests_to_triton_end_well(
    server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch, read_bytes: int
) -> None:
    """2000 requests over 16 kept connections are answered and counted once, in one piece or in many."""
    monkeypatch.setattr(http_engine, "READ_BYTES", read_bytes)
    statuses: Counter[int] = Counter()
    over = gevent.event.Event()
    with Client(server.http_url) as client:
        before = client.settled_statistics("linear").inference_count
        engine = engine_for(server.http_url)
        payload = engine.payload(client.request("linear", {"x": np.ones((1, 4), np.float32)}))

        def done(sequence: int, status: int) -> None:
            statuses[status] += 1
            if sequence + 16 < 2000:
                engine.start(sequence + 16, payload)
            elif statuses.total() == 2000:
                over.set()

        engine.done = done
        for sequence in range(16):
            engine.start(sequence, payload)
        assert over.wait(60)
        assert len(engine._all) == len(engine._idle) == 16
        engine.give_up()
        assert client.settled_statistics("linear").inference_count - before == 2000
    assert statuses == {OK: 2000}


@pytest.mark.triton
def test_what_triton_refuses_is_failed(server: EmbeddedServer) -> None:
    """An index that the model rejects, an unknown model and a wrong type fail; good ones beside them do not."""
    engine = engine_for(server.http_url)
    with Client(server.http_url) as client:
        good, bad = (
            engine.payload(client.request("gather", {"index": np.array([[value]], np.int64)})) for value in (3, 99)
        )
    unknown, odd = good.replace(b"models/gather/", b"models/ghost!/"), good.replace(b"INT64", b"FP640")
    endings = Endings(engine)
    for payload, status in ((good, OK), (bad, FAILED), (unknown, FAILED), (odd, FAILED), (good, OK)):
        assert endings.of([payload]) == [status]
    engine.give_up()


@pytest.mark.triton
def test_giving_up_closes_everything_and_tells_nobody(server: EmbeddedServer) -> None:
    """Requests that are broken off do not end, and no file descriptor stays open."""
    gevent.sleep(0)  # the hub has files of its own
    with Client(server.http_url) as client:
        request = client.request("linear", {"x": np.ones((1, 4), np.float32)})
    before = psutil.Process().num_fds()
    engine = engine_for(server.http_url)
    endings, payload = Endings(engine), engine.payload(request)
    for sequence in range(50):
        engine.start(sequence, payload)
    engine.give_up()
    gevent.sleep(0.1)
    assert endings.heard == []
    assert psutil.Process().num_fds() == before
    assert endings.of([payload] * 3) == [OK] * 3, "it can be used again"
    engine.give_up()
    assert psutil.Process().num_fds() == before


LINES = st.sampled_from(
    [
        *("Content-Type: application/json", "Inference-Header-Content-Length: 5", "X: y", "Server: close"),
        *("Connection: close", "connection: Close", "Connection: keep-alive", "Transfer-Encoding: chunked"),
        *("Content-Length: {0}", "content-length: {0}", "Content-Length:{0}", "Content-Length: {1}"),
        *("Content-Length:  {0}", "Content-Length: 0{0}", "Content-Length: +{0}", "Content-Length: ", "Keep: open"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(
    start=st.sampled_from(
        ["HTTP/1.1 200 OK", "HTTP/1.1 200 ", "HTTP/1.1 2000 OK", "HTTP/1.1 204 No", "HTTP/1.0 200 K"]
    ),
    lines=st.lists(LINES, max_size=4).map(lambda lines: ["Content-Length: {0}", *lines]) | st.lists(LINES, max_size=5),
    body=st.binary(max_size=40) | st.just(GOOD),
    cut=st.integers(-20, 20),
    at=st.integers(0, 200),
)
def test_the_short_way_agrees_with_the_parser(start: str, lines: list[str], body: bytes, cut: int, at: int) -> None:
    """What is taken for one whole success is that to the parser, fed in any pieces, and keeps its connection."""
    head = "\r\n".join([start, *lines]).format(len(body), len(body) + 1)
    data = head.encode() + b"\r\n\r\n" + body
    data = data[:cut] if cut < 0 else data + b"H" * (cut // 10)
    if not _is_whole_success(data):
        return
    parser = ReplyParser("POST")
    try:
        parser.feed(data[:at])
        complete_before = parser.message_complete and at < len(data)
        parser.feed(data[at:])
    except HTTPParseError as error:
        pytest.fail(f"{data!r}: {error}")
    assert not complete_before
    assert (parser.message_complete, parser.status_code, parser.should_close()) == (True, 200, False)
    assert parser.body == data[len(head) + 4 :]


@settings(max_examples=50, deadline=None)
@given(body=st.binary(max_size=300), lines=st.lists(st.sampled_from(["Content-Type: a/b", "X: y"]), max_size=3))
def test_what_triton_answers_takes_the_short_way(body: bytes, lines: list[str]) -> None:
    """A whole answer as Triton writes it is recognised, and neither a part of it nor anything more."""
    lengths = [f"Inference-Header-Content-Length: {len(body)}", f"Content-Length: {len(body)}"]
    data = "\r\n".join(["HTTP/1.1 200 OK", *lines, *lengths]).encode() + b"\r\n\r\n" + body
    assert _is_whole_success(data)
    assert not _is_whole_success(data + b"x")
    assert not any(_is_whole_success(data[:cut]) for cut in range(len(data)))
