"""HTTP for threads, and for greenlets where gevent has patched the sockets: plain sockets in a pool per server.

tritonclient's own HTTP client cannot be used from two threads; this one can, since a connection belongs to one request
at a time. A connection whose request was interrupted or ran out of time is closed.
"""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections import defaultdict
from functools import partial
from select import select

from tritonbatch.client.errors import closed
from tritonbatch.client.http_wire import ReplyParser, RequestWriter
from tritonbatch.client.message import Buffer, Call, Reply
from tritonbatch.client.options import Connections
from tritonbatch.client.threads import Threads
from tritonbatch.client.tls import ssl_context

FIRST_READ, NEXT_READ = 65536, 131072
"""Larger reads cost more: what a read might have filled is allocated anew each time."""
STALE_AFTER_S = 1.0
"""A connection that idled longer is checked for having been closed by the server."""


class BlockingHttp(Threads):
    """Exchanges over pooled connections, at most ``connections.limit`` per server."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._connections = connections
        self._pools: defaultdict[str, _Pool] = defaultdict(_Pool)
        self._writers: dict[str, RequestWriter] = {}
        self._closed = False
        self._context = ssl_context(connections.tls) if connections.tls else None

    async def exchange(self, address: str, call: Call, timeout_s: float) -> Reply:
        """Send *call* and wait for its reply."""
        if self._closed:
            raise closed()
        deadline = time.monotonic() + timeout_s
        writer = self._writers.get(address)
        if writer is None:
            writer = self._writers[address] = RequestWriter(address, self._connections.headers)
        pool = self._pools[address]
        connection = pool.take(self._connections.limit, deadline)
        usable = False
        try:
            if connection is None or connection.is_stale():
                if connection is not None:
                    connection.socket.close()
                connection = _Connection(writer.host, writer.port, self._context, deadline)
            parts, method, cancellation = writer.write(call), "POST" if call.body else "GET", self.cancellation()
            if cancellation is None:
                parser = connection.exchange(parts, method, deadline)
            else:
                exchange = partial(connection.exchange, parts, method, deadline)
                parser = cancellation.run(exchange, connection.shut)
            usable = not parser.should_close()
            return parser.reply()
        finally:
            if not usable and connection is not None:
                connection.socket.close()
            pool.give_back(connection if usable else None)

    def forked(self) -> None:
        """In a child of this process: let go of the connections, which stay the parent's, and make others."""
        super().forked()
        pools, self._pools = self._pools, defaultdict(_Pool)
        for pool in pools.values():
            pool.let_go()

    def close(self) -> None:
        """Close every connection; those under way are closed when their request ends."""
        super().close()
        self._closed = True
        for pool in list(self._pools.values()):
            pool.close()


class _Connection:
    def __init__(self, host: str, port: int, context: ssl.SSLContext | None, deadline: float) -> None:
        self.socket = socket.create_connection((host, port), timeout=_left(deadline))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context is not None:
            plain = self.socket
            try:
                self.socket = context.wrap_socket(plain, server_hostname=host)
            except BaseException:
                plain.close()
                raise
        self.used = time.monotonic()

    def is_stale(self) -> bool:
        """Whether the server has closed it while it idled: an idle connection has nothing to read but its end."""
        return time.monotonic() - self.used > STALE_AFTER_S and bool(select([self.socket], [], [], 0)[0])

    def shut(self) -> None:
        """Break the request under way from another thread."""
        try:
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it has ended by itself

    def exchange(self, parts: list[Buffer], method: str, deadline: float) -> ReplyParser:
        self.socket.settimeout(_left(deadline))
        for part in parts:
            self.socket.sendall(part)
        parser = ReplyParser(method)
        data = self.socket.recv(FIRST_READ)
        while data:
            parser.feed(data)
            if parser.message_complete and parser.status_code >= 200:
                break
            self.socket.settimeout(_left(deadline))
            data = self.socket.recv(NEXT_READ)
        else:
            parser.closed()
        self.used = time.monotonic()
        return parser


class _Pool:
    """The connections to one server; the one used last is taken first."""

    def __init__(self) -> None:
        self._idle: list[_Connection] = []
        self._open = 0
        self._closed = False
        self._changed = threading.Condition(threading.Lock())

    def take(self, limit: int, deadline: float) -> _Connection | None:
        """An idle connection, or None as the leave to open one."""
        with self._changed:
            while not self._idle and self._open >= limit:
                if not self._changed.wait(_left(deadline)):
                    raise TimeoutError("no connection became free")
            if self._closed:
                raise closed()
            if self._idle:
                return self._idle.pop()
            self._open += 1
            return None

    def give_back(self, connection: _Connection | None) -> None:
        with self._changed:
            if connection is not None and not self._closed:
                self._idle.append(connection)
            else:
                self._open -= 1
                if connection is not None:
                    connection.socket.close()
            self._changed.notify()

    def let_go(self) -> None:
        """Close the sockets in this process only; without the lock, which a thread of the parent may have held."""
        for connection in self._idle:
            connection.socket.close()  # no shutdown, which the parent would feel

    def close(self) -> None:
        with self._changed:
            self._closed = True
            for connection in self._idle:
                connection.socket.close()
            self._idle.clear()
            self._changed.notify_all()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the deadline has passed")
    return left
