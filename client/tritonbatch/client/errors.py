"""What a request can die of, by what the caller can do, and the one place where foreign errors become these.

RequestFailed
├── TryAgain             repeat it, here or at another endpoint: nothing is wrong with the request
│   ├── Unreachable      nothing answers at the address, or the connection broke
│   └── NotReady         the server is stopping, or the model is not loaded (yet)
├── Overloaded           wait: the queue is full
├── InvalidRequest       fix the input: model, tensor, type or shape cannot be right
├── TimedOut             give up, or give more time: the deadline passed, here or in the queue
├── Cancelled            give up: somebody cancelled it
└── ServerError          give up: the server failed on a request that looked right; read its log
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager

import grpc
from geventhttpclient.response import HTTPParseError
from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError
from tritonclient.utils import InferenceServerException

from tritonbatch.errors import RequestFailed


class TryAgain(RequestFailed):
    """Nothing is wrong with the request: the same may succeed on another attempt, or at another endpoint."""


class Unreachable(TryAgain):
    """Nothing answers at the address, or the connection broke before the answer came."""

    exit_code = 2


class NotReady(TryAgain):
    """The server is stopping, or the model is not loaded (yet)."""


class Overloaded(RequestFailed):
    """The server refuses for now: its queue is full. Send less, or wait."""


class TimedOut(RequestFailed):
    """No answer in time: the caller's deadline passed, or the queue's own timeout."""


class InvalidRequest(RequestFailed):
    """The request cannot be right; sending it again gives the same answer."""

    exit_code = 2


class Cancelled(RequestFailed):
    """Somebody cancelled the request: the caller, a hedge that lost, or the server on its behalf."""


class ServerError(RequestFailed):
    """The server failed on a request that looked right, or its answer makes no sense."""


MALFORMED = (ValueError, KeyError, TypeError, IndexError, struct.error, DecodeError, ParseError)
"""What decoding an answer raises when the bytes are no answer of Triton's."""

FOREIGN = (InferenceServerException, grpc.RpcError, grpc.aio.BaseError, OSError, HTTPParseError)
"""Every error of tritonclient, gRPC and the sockets that an exchange with a server can raise."""

# What Triton says in words, where the code alone does not tell (UNAVAILABLE and 503 stand for five things).
_BY_TEXT: tuple[tuple[str, type[RequestFailed]], ...] = (
    ("exceeds maximum queue size", Overloaded),
    ("request timeout expired", TimedOut),
    ("server is stopping", NotReady),
    ("is not ready", NotReady),
    ("has no available versions", NotReady),
    ("shutting down", NotReady),
    ("stub process", ServerError),
)
_CONNECTION_TEXTS = (
    "failed to connect",
    "connection refused",
    "connection reset",
    "name resolution",
    "dns resolution",
    "socket closed",
    "broken pipe",
    "recvmsg",
    "sendmsg",
    "stream removed",
    "goaway",
    "connection closed",
    "connection dropped",
    "connection attempt",
    "handshake",
    "endpoint closing",
    "transport closed",
    "keepalive",
)

# HTTP codes and gRPC names that mean the same to a caller (Triton maps UNAVAILABLE to 503 and so on).
_BY_CODE: dict[str, type[RequestFailed]] = {
    **dict.fromkeys(("503", "UNAVAILABLE"), NotReady),
    **dict.fromkeys(("429", "RESOURCE_EXHAUSTED"), Overloaded),
    **dict.fromkeys(("502",), Unreachable),
    **dict.fromkeys(("408", "504", "DEADLINE_EXCEEDED"), TimedOut),
    **dict.fromkeys(("499", "CANCELLED"), Cancelled),
    **dict.fromkeys(
        (
            *("400", "401", "403", "404", "405", "409", "413", "415"),
            *("INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "OUT_OF_RANGE", "FAILED_PRECONDITION"),
            *("PERMISSION_DENIED", "UNAUTHENTICATED", "UNKNOWN"),
        ),
        InvalidRequest,
    ),
}


@contextmanager
def mapped_errors(address: str, model: str = "") -> Iterator[None]:
    """Turn whatever tritonclient, gRPC or the sockets raise inside into one of this module's errors."""
    try:
        yield
    except (*FOREIGN, *MALFORMED) as error:
        raise translated(error, address, model) from error


def translated(error: Exception, address: str, model: str = "") -> RequestFailed:
    """The error of this module that says what *error* of tritonclient, gRPC or a socket means to a caller."""
    about = f"{address}, model {model!r}" if model else address
    if isinstance(error, InferenceServerException):
        return _refused(about, str(error.status() or "").rpartition(".")[2], error.message() or "")
    if isinstance(error, grpc.RpcError) and hasattr(error, "code"):
        return _refused(about, getattr(error.code(), "name", ""), error.details() or "")
    if isinstance(error, TimeoutError):
        return TimedOut(f"No answer from {about} in time; give it more, or check whether the server is overloaded.")
    if isinstance(error, (OSError, HTTPParseError)):
        return _unreachable(about, str(error) or type(error).__name__)
    if isinstance(error, (grpc.RpcError, grpc.aio.BaseError)):
        return ServerError(f"{about}: gRPC failed ({error}); check that a Triton server listens there.")
    return ServerError(
        f"{about}: the answer is not one of Triton's ({type(error).__name__}: {error}); check the address."
    )


def _refused(about: str, code: str, message: str) -> RequestFailed:
    text, said = message.lower(), message.strip() or "no message"
    kind = next((kind for sign, kind in _BY_TEXT if sign in text), None)
    if kind is None and code == "UNAVAILABLE" and any(sign in text for sign in _CONNECTION_TEXTS):
        return _unreachable(about, said)
    if "shared memory" in text and "disabled" in text:
        said += "; start the server with --allow-client-shm=true"
    kind = kind or _BY_CODE.get(code, ServerError)
    return kind(f"{about}: the server answered {code or 'with an error'}: {said}")


def _unreachable(about: str, reason: str) -> Unreachable:
    return Unreachable(f"Nothing answers at {about} ({reason}); expected a Triton server: check address and port.")
