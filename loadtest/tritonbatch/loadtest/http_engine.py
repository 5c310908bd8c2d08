"""HTTP for the load generator: requests that are bytes already, sent from and answered in gevent's hub.

A greenlet per request costs more than the request. Here a request is a write to an idle connection, and its answer a
callback when the connection becomes readable; a common answer, which comes in one piece, is looked at for its status
and its length and dropped. What the answer says otherwise is worked out by the client library's own rules.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from typing import Any

from gevent import get_hub
from gevent.monkey import get_original
from geventhttpclient.response import HTTPParseError

from tritonbatch.client.errors import FOREIGN, MALFORMED, mapped_errors, translated
from tritonbatch.client.http_wire import ReplyParser, RequestWriter
from tritonbatch.client.message import Language, Request
from tritonbatch.errors import RequestFailed
from tritonbatch.loadtest.records import OK
from tritonbatch.loadtest.statuses import FAILED, status_of

READABLE, WRITABLE = 1, 2
READ_BYTES = 65536
CONNECT_S = 10.0
_CONTENT_LENGTH = b"\r\nContent-Length: "
_native_socket: Any = get_original("socket", "socket")

Done = Callable[[int, int], None]
"""``done(sequence, status)``: the request with that number has ended; *status* is an index into STATUSES."""


class HttpEngine:
    """Any number of requests at once to one server, a connection each; connections are kept and used again.

    Raises:
        RequestFailed: nothing answers at the address.
    """

    def __init__(self, address: str, language: Language, headers: Mapping[str, str], model: str) -> None:
        self.address, self.language, self.model = address, language, model
        self._writer = RequestWriter(address, headers)
        self._idle: list[_Connection] = []
        self._all: set[_Connection] = set()
        # A name may have several addresses, of which not all need answer: localhost is ::1 and 127.0.0.1.
        with (
            mapped_errors(address, model),
            socket.create_connection((self._writer.host, self._writer.port), CONNECT_S) as answering,
        ):
            self.family, self.where = answering.family, answering.getpeername()
        self.done: Done = lambda *_: None

    def payload(self, request: Request, request_id: str = "") -> bytes:
        """*request* as the bytes to send, any number of times."""
        call = request.write(None, request_id or request.options.request_id, {})
        return b"".join(self._writer.write(call))

    def start(self, sequence: int, payload: bytes) -> None:
        """Send *payload*; ``done`` is called when it was answered, or cannot be."""
        idle = self._idle
        try:
            connection = idle.pop() if idle else self._new()
        except OSError:  # no more file descriptors or ports: the generator's limit, which must not end the run
            self.done(sequence, FAILED)
            return
        connection.send(sequence, payload)

    def give_up(self) -> None:
        """Break off every request under way, without calling ``done``."""
        for connection in list(self._all):
            connection.close()
        self._all.clear()
        self._idle.clear()

    def free(self, connection: _Connection) -> None:
        """Take back a connection whose answer has come."""
        self._idle.append(connection)

    def drop(self, connection: _Connection) -> None:
        """Forget a connection that has ended."""
        self._all.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)

    def _new(self) -> _Connection:
        connection = _Connection(self)
        self._all.add(connection)
        return connection


class _Connection:
    """One request at a time over one non-blocking socket."""

    def __init__(self, engine: HttpEngine) -> None:
        self._engine = engine
        self._sequence = -1
        self._unsent = memoryview(b"")
        self._answer: ReplyParser | None = None
        self._watching = READABLE
        self._socket: Any = _native_socket(engine.family, socket.SOCK_STREAM)
        self._socket.setblocking(False)  # noqa: FBT003 - its signature
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.connect_ex(engine.where)  # under way; when it fails, sending does
        self._watcher: Any = get_hub().loop.io(self._socket.fileno(), READABLE)
        self._watcher.start(self._ready)

    def send(self, sequence: int, payload: bytes) -> None:
        self._sequence = sequence
        try:
            sent = self._socket.send(payload)
        except (BlockingIOError, InterruptedError):
            sent = 0
        except OSError as error:
            self._failed(error)
            return
        if sent < len(payload):
            self._unsent = memoryview(payload)[sent:]
            self._watch(READABLE | WRITABLE)

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
        self._socket.close()

    def _watch(self, events: int) -> None:
        if events != self._watching:
            self._watching = events
            self._watcher.stop()
            self._watcher.events = events
            self._watcher.start(self._ready)

    def _ready(self) -> None:
        if self._unsent and not self._send_more():
            return
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._failed(error)
            return
        sequence = self._sequence
        if sequence >= 0 and self._answer is None and not self._unsent and _is_whole_success(data):
            self._sequence = -1
            self._engine.free(self)
            self._engine.done(sequence, OK)
        elif sequence < 0:  # closed while idle, or it speaks unasked
            self._engine.drop(self)
            self.close()
        else:
            self._read(data)

    def _send_more(self) -> bool:
        """Send on; False when the connection has ended. An answer may come before all is sent: a refusal."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except (BlockingIOError, InterruptedError):
            return True
        except OSError as error:
            self._failed(error)
            return False
        if not self._unsent:
            self._watch(READABLE)
        return True

    def _read(self, data: bytes) -> None:
        """The slow way: an answer in pieces, or one that is no success."""
        parser = self._answer = self._answer or ReplyParser("POST")
        try:
            if data:
                parser.feed(data)
            else:
                parser.closed()
        except HTTPParseError as error:
            self._failed(error)
            return
        if not parser.message_complete or parser.status_code < 200:
            if not data:
                self._failed(HTTPParseError("the connection was closed before the whole answer had come"))
            return
        sequence, self._sequence, self._answer = self._sequence, -1, None
        status = self._judge(parser)
        if parser.should_close() or not data or self._unsent:
            self._engine.drop(self)
            self.close()
        else:
            self._engine.free(self)
        self._engine.done(sequence, status)

    def _judge(self, parser: ReplyParser) -> int:
        engine = self._engine
        if parser.status_code == 200:
            return OK
        try:
            engine.language.answer(parser.reply())
        except (*FOREIGN, *MALFORMED) as error:
            return status_of(translated(error, engine.address, engine.model))
        return OK

    def _failed(self, error: Exception) -> None:
        sequence, self._sequence = self._sequence, -1
        self._engine.drop(self)
        self.close()
        if sequence >= 0:
            failure: RequestFailed = translated(error, self._engine.address, self._engine.model)
            self._engine.done(sequence, status_of(failure))


def _is_whole_success(data: bytes) -> bool:
    """Whether *data* is one whole answer with status 200, so that nothing else of it matters."""
    if not data.startswith(b"HTTP/1.1 200 "):
        return False
    end = data.find(b"\r\n\r\n")
    head = data[: end + 2]
    at = head.find(_CONTENT_LENGTH)
    if at < 0 or not head.startswith(b"%d\r\n" % (len(data) - end - 4), at + len(_CONTENT_LENGTH)):
        return False
    head = head.lower()  # what else bears on where an answer or its connection ends is for the parser
    return head.count(b"\r\ncontent-length") == 1 and b"close" not in head and b"transfer-encoding" not in head
