"""How prepared requests get to the server: HTTP in gevent's hub, or the client library, a greenlet per request."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Protocol as TypingProtocol

import gevent
from gevent.pool import Group

from tritonbatch.client import Client, Connections, Protocol, Request
from tritonbatch.client.client import language_of
from tritonbatch.errors import RequestFailed
from tritonbatch.loadtest.http_engine import Done, HttpEngine
from tritonbatch.loadtest.records import OK
from tritonbatch.loadtest.statuses import status_of

IdOf = Callable[[int], str] | None
"""``id_of(sequence)`` is the request id of the *sequence*-th request of this process; None gives them none."""
Pick = Callable[[int], int]
"""``pick(sequence)`` says which of the prepared requests the *sequence*-th one is."""


class Sender(TypingProtocol):
    """Sends the *sequence*-th request of a run, and calls ``done(sequence, status)`` when it has ended."""

    done: Done

    def start(self, sequence: int, rows: int) -> None:
        """Begin to send; returns at once."""

    def close(self) -> None:
        """Break off what is under way; ``done`` is not called for it."""


class HttpSender:
    """Requests as bytes; with *id_of* each carries its id, to be found in a trace, and is written anew for it."""

    def __init__(self, engine: HttpEngine, requests: Sequence[Request], pick: Pick, id_of: IdOf = None) -> None:
        self._engine = engine
        self._requests = requests
        self._payloads = [engine.payload(request) for request in requests]
        self._pick = pick
        self._id_of = id_of

    @property
    def done(self) -> Done:
        """Who is told."""
        return self._engine.done

    @done.setter
    def done(self, done: Done) -> None:
        self._engine.done = done

    def start(self, sequence: int, rows: int) -> None:  # noqa: ARG002 - padding: every batch is sent full
        """Begin to send."""
        chosen = self._pick(sequence)
        payload = self._payloads[chosen]
        if self._id_of is not None:
            payload = self._engine.payload(self._requests[chosen], self._id_of(sequence))
        self._engine.start(sequence, payload)

    def close(self) -> None:
        """Close every connection."""
        self._engine.give_up()


class ClientSender:
    """The client library, for gRPC: its calls block, so each has a greenlet."""

    def __init__(self, client: Client, requests: Sequence[Request], pick: Pick, id_of: IdOf = None) -> None:
        self.done: Done = lambda *_: None
        self._client = client
        self._requests = requests
        self._pick = pick
        self._id_of = id_of
        self._sending = Group()

    def start(self, sequence: int, rows: int) -> None:  # noqa: ARG002 - padding: every batch is sent full
        """Begin to send."""
        self._sending.add(gevent.spawn(self._send, sequence))

    def close(self) -> None:
        """Cancel every call."""
        self._sending.kill(block=False)

    def _send(self, sequence: int) -> None:
        request = self._requests[self._pick(sequence)]
        if self._id_of is not None:
            options = dataclasses.replace(request.options, request_id=self._id_of(sequence))
            request = request._replace(options=options)
        try:
            self._client.send(request)
        except RequestFailed as failure:
            self.done(sequence, status_of(failure))
        else:
            self.done(sequence, OK)


def sender_for(
    client: Client,
    requests: Sequence[Request],
    pick: Pick,
    *,
    connections: Connections,
    id_of: IdOf = None,
) -> Sender:
    """The cheapest way to send *requests* to the one server of *client*; TLS takes the client library."""
    if client.protocol == "http" and connections.tls is None:
        engine = HttpEngine(client.url, language_of("http"), connections.headers, requests[0].model)
        return HttpSender(engine, requests, pick, id_of)
    return ClientSender(client, requests, pick, id_of)


def prepare_grpc(protocol: Protocol) -> None:
    """Let gRPC wait in gevent's hub; must come before any channel, and only where gRPC is used."""
    if protocol == "grpc":
        import grpc.experimental.gevent  # noqa: PLC0415

        grpc.experimental.gevent.init_gevent()
