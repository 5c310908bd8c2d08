"""HTTP for asyncio: pooled connections, each an asyncio protocol around the same parser that blocking clients use."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from geventhttpclient.response import HTTPParseError

from tritonbatch.client.errors import closed
from tritonbatch.client.http_wire import ReplyParser, RequestWriter
from tritonbatch.client.message import Buffer, Call, Reply
from tritonbatch.client.options import Connections
from tritonbatch.client.tasks import Tasks
from tritonbatch.client.tls import ssl_context


class AsyncHttp(Tasks):
    """Exchanges over pooled connections, at most ``connections.limit`` per server; for one event loop."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections
        self._writers: dict[str, RequestWriter] = {}
        self._context = ssl_context(connections.tls) if connections.tls else None
        self._idle: defaultdict[str, list[_Connection]] = defaultdict(list)
        self._free: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(connections.limit))
        self._open: set[_Connection] = set()
        self._closed = False

    async def exchange(self, address: str, call: Call, timeout_s: float) -> Reply:
        """Send *call* and wait for its reply."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._bind(loop)
        writer = self._writers.get(address)
        if writer is None:
            writer = self._writers[address] = RequestWriter(address, self._connections.headers)
        connection: _Connection | None = None
        async with asyncio.timeout(timeout_s), self._free[address]:
            try:
                connection = await self._take(address, writer)
                parser = await connection.exchange(writer.write(call), "POST" if call.body else "GET")
                if not parser.should_close():
                    self._idle[address].append(connection)
                    connection = None
                return parser.reply()
            finally:
                if connection is not None:  # it failed, or was cancelled: its answer must not meet the next request
                    self._open.discard(connection)
                    connection.close()

    async def close(self) -> None:
        """Close every connection; requests under way break."""
        self._closed = True
        if self._loop is asyncio.get_running_loop():
            await self._end_losing()
        for connection in self._open:
            connection.close()
        self._open.clear()
        self._idle.clear()
        await asyncio.sleep(0)  # the loop closes the sockets in its next turn

    async def _take(self, address: str, writer: RequestWriter) -> _Connection:
        if self._closed:
            raise closed()
        idle = self._idle[address]
        while idle:
            connection = idle.pop()
            if not connection.is_closed:
                return connection
            self._open.discard(connection)
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(_Connection, writer.host, writer.port, ssl=self._context)
        self._open.add(connection)
        return connection


class _Connection(asyncio.Protocol):
    """One connection, one request at a time. asyncio sets TCP_NODELAY."""

    def __init__(self) -> None:
        self.is_closed = False
        self._transport: asyncio.Transport | None = None
        self._parser: ReplyParser | None = None
        self._done: asyncio.Future[ReplyParser] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - TCP gives nothing else
        self._transport = transport

    async def exchange(self, parts: list[Buffer], method: str) -> ReplyParser:
        if self._transport is None or self._transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        self._parser = ReplyParser(method)
        self._done = asyncio.get_running_loop().create_future()
        for part in parts:
            self._transport.write(part)
        return await self._done

    def data_received(self, data: bytes) -> None:
        if self._parser is None or self._done is None or self._done.done():
            self.close()  # nobody asked for anything
            return
        try:
            self._parser.feed(data)
        except HTTPParseError as error:
            self._fail(error)
            return
        if self._parser.message_complete and self._parser.status_code >= 200:
            self._done.set_result(self._parser)

    def eof_received(self) -> None:
        if self._parser is not None and self._done is not None and not self._done.done():
            try:
                self._parser.closed()
            except HTTPParseError as error:
                self._fail(error)
            else:
                self._done.set_result(self._parser)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_closed = True
        self._fail(exc or ConnectionResetError("the connection was closed"))

    def close(self) -> None:
        self.is_closed = True
        if self._transport is not None:
            try:
                self._transport.abort()
            except RuntimeError:
                return  # its loop is closed

    def _fail(self, error: Exception) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(error)
