"""HTTP/1.1 as bytes: a request written, a reply parsed with geventhttpclient's llhttp. No sockets here."""

from __future__ import annotations

from collections.abc import Mapping

from geventhttpclient.response import HTTPParseError, HTTPResponse

from tritonbatch.client.message import Buffer, Call, Reply

SMALL = 65536
"""Up to this size a request is joined and sent at once; above it, the parts are sent from where they lie."""


class ReplyParser(HTTPResponse):
    """Feed it what arrives until ``message_complete``; the body is kept in one buffer that the arrays may use."""

    def __init__(self, method: str) -> None:
        super().__init__(method)
        self.body = bytearray()

    def _on_body(self, buf: bytearray) -> None:
        self.body += buf

    def reply(self) -> Reply:
        """The whole reply."""
        json_bytes = self.get("inference-header-content-length")
        return Reply(self.body, self.status_code, int(json_bytes) if isinstance(json_bytes, str) else None)

    def closed(self) -> None:
        """Say that the peer closed; raises where that was too early."""
        if not self.headers_complete or self.content_length is not None or self.get("transfer-encoding"):
            raise HTTPParseError("the connection was closed before the whole answer had come")
        self.message_complete = True


class RequestWriter:
    """Writes requests to one server: the lines that repeat are made once."""

    def __init__(self, address: str, headers: Mapping[str, str]) -> None:
        authority, slash, base = address.partition("/")
        self.host, _, port = authority.rpartition(":")
        self.port = int(port)
        self._base = f"/{base.rstrip('/')}" if slash and base.rstrip("/") else ""
        fixed = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        self._post_end = f" HTTP/1.1\r\nHost: {authority}\r\n{fixed}Content-Length: "
        self._get_end = f" HTTP/1.1\r\nHost: {authority}\r\n{fixed}"
        self.host = self.host.strip("[]")  # an IPv6 address

    def write(self, call: Call) -> list[Buffer]:
        """The bytes of *call*, in parts; one part when they are few."""
        lines = "".join([f"{name}: {value}\r\n" for name, value in call.headers.items()])
        if not call.body:
            return [f"GET {self._base}{call.target}{self._get_end}{lines}\r\n".encode("latin-1")]
        size = sum([len(part) for part in call.body])
        head = f"POST {self._base}{call.target}{self._post_end}{size}\r\n{lines}\r\n".encode("latin-1")
        if size <= SMALL:
            return [b"".join((head, *call.body))]
        return [head, *call.body]
