"""gRPC channels to Triton, for threads and for asyncio: one per server, with calls that take and give plain bytes."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc

from tritonbatch.client.errors import closed, forked
from tritonbatch.client.grpc_language import SERVICE
from tritonbatch.client.message import Call, Reply
from tritonbatch.client.options import Connections
from tritonbatch.client.tasks import Tasks
from tritonbatch.client.threads import Threads
from tritonbatch.client.tls import channel_credentials

CHANNEL = (
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # Its own connection, which ends with the client: gRPC shares one between channels otherwise.
    ("grpc.use_local_subchannel_pool", 1),
    # A restarted server is found again within a second; gRPC's own back-off goes up to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)


class _Channels:
    """The channels of one client and their calls by method name, made on first use by ``grpc`` or ``grpc.aio``."""

    def __init__(self, channels: Any, connections: Connections) -> None:
        self._connect: Callable[..., Any] = channels.insecure_channel
        if connections.tls is not None:
            self._connect = partial(channels.secure_channel, credentials=channel_credentials(connections.tls))
        self._fixed = tuple((name.lower(), value) for name, value in connections.headers.items())
        self._channels: dict[str, Any] = {}
        self._calls: dict[tuple[str, str], Any] = {}
        self._making = threading.Lock()
        self._closed = self._forked = False

    def call(self, address: str, method: str) -> Any:
        return self._calls.get((address, method)) or self._made(address, method)

    def _made(self, address: str, method: str) -> Any:
        if self._forked:
            raise forked()
        with self._making:
            if self._closed:
                raise closed()
            if address not in self._channels:
                self._channels[address] = self._connect(address, options=CHANNEL)
            return self._calls.setdefault((address, method), self._channels[address].unary_unary(SERVICE + method))

    def metadata(self, call: Call) -> tuple[tuple[str, str], ...]:
        return (*self._fixed, *call.headers.items()) if call.headers else self._fixed

    def forked(self) -> None:
        """In a child of this process: touch no channel again, not even to close it, for gRPC would hang."""
        self._making = threading.Lock()
        self._forked = bool(self._channels) or self._forked
        self._inherited, self._channels, self._calls = self._channels, {}, {}

    def drain(self) -> list[Any]:
        """The channels to close; none is left."""
        with self._making:
            self._closed = True
            channels = list(self._channels.values())
            self._channels.clear()
            self._calls.clear()
        return channels


class BlockingGrpc(Threads):
    """Exchanges for threads, and for greenlets after ``grpc.experimental.gevent.init_gevent()``."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._channels = _Channels(grpc, connections)

    async def exchange(self, address: str, call: Call, timeout_s: float) -> Reply:
        """Send *call* and wait for its reply."""
        rpc, metadata = self._channels.call(address, call.target), self._channels.metadata(call)
        cancellation = self.cancellation()
        if cancellation is None:
            return Reply(rpc(b"".join(call.body), timeout=timeout_s, metadata=metadata))
        future = rpc.future(b"".join(call.body), timeout=timeout_s, metadata=metadata)
        return Reply(cancellation.run(future.result, future.cancel))

    def forked(self) -> None:
        """In a child of this process: refuse what gRPC does not survive."""
        super().forked()
        self._channels.forked()

    def close(self) -> None:
        """Close the channels; requests under way break."""
        super().close()
        for channel in self._channels.drain():
            channel.close()


class AsyncGrpc(Tasks):
    """Exchanges for asyncio; for one event loop."""

    def __init__(self, connections: Connections) -> None:
        super().__init__()
        self._channels = _Channels(grpc.aio, connections)

    async def exchange(self, address: str, call: Call, timeout_s: float) -> Reply:
        """Send *call* and wait for its reply; cancelling the task cancels the call on the server."""
        if self._loop is not (loop := asyncio.get_running_loop()):
            self._bind(loop)
        rpc = self._channels.call(address, call.target)
        metadata = self._channels.metadata(call)
        try:
            return Reply(await rpc(b"".join(call.body), timeout=timeout_s, metadata=metadata))
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionAbortedError("the client was closed") from error  # gRPC says it so

    def forked(self) -> None:
        """In a child of this process: refuse what gRPC does not survive."""
        self._channels.forked()

    async def close(self) -> None:
        """Close the channels; requests under way break.

        Raises:
            InvalidInput: they belong to another event loop.
        """
        if self._loop is not None:
            self._bind(asyncio.get_running_loop())
        await self._end_losing()
        for channel in self._channels.drain():
            await channel.close()
