"""Replies on the wire: what ends where, and what was cut off."""

from __future__ import annotations

import pytest
from geventhttpclient.response import HTTPParseError

from tritonbatch.client.http_wire import ReplyParser

OK = b"HTTP/1.1 200 OK\r\n"


@pytest.mark.parametrize(
    ("received", "body"),
    [
        (OK + b"\r\nuntil the end", b"until the end"),
        (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"abc"),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1000])
def test_a_whole_reply_is_read_in_any_pieces(received: bytes, body: bytes, step: int) -> None:
    """By its length, by its chunks, or by the end of the connection."""
    parser = ReplyParser("POST")
    for first in range(0, len(received), step):
        parser.feed(received[first : first + step])
    if not parser.message_complete:
        parser.closed()
    assert bytes(parser.reply().body) == body


@pytest.mark.parametrize(
    "received",
    [
        b"",
        b"HTTP/1.1 200",
        OK,
        OK + b"Content-Length: 3\r\n\r\nab",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n",
        OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\na",
    ],
)
def test_a_reply_that_was_cut_off_is_none(received: bytes) -> None:
    """The connection ended before the reply did: never taken for a short one."""
    parser = ReplyParser("POST")
    if received:
        parser.feed(received)
    with pytest.raises(HTTPParseError):
        parser.closed()
