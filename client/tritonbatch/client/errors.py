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

import re
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException

import grpc
from google.protobuf.json_format import ParseError
from google.protobuf.message import DecodeError
from tritonclient.utils import InferenceServerException

from tritonbatch.errors import InvalidInput, RequestFailed


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


MALFORMED = (
    *(ValueError, LookupError, TypeError, AttributeError, ArithmeticError, StopIteration, RecursionError),
    *(struct.error, DecodeError, ParseError),
)
"""What decoding an answer raises when the bytes are no answer of Triton's."""

FOREIGN = (
    InferenceServerException,
    *(grpc.RpcError, grpc.aio.BaseError, grpc.FutureTimeoutError, grpc.FutureCancelledError),
    *(OSError, HTTPException),  # of http.client, on which geventhttpclient bases what its parser raises
)
"""Every error of tritonclient, gRPC and the sockets that an exchange with a server can raise."""

# HTTP statuses and gRPC names that mean the same to a caller (Triton maps UNAVAILABLE to 503 and so on). Of the
# others, 4xx say that the request is wrong, and everything else is a ServerError.
_BY_CODE: dict[str, type[RequestFailed]] = {
    **dict.fromkeys(("503", "UNAVAILABLE"), NotReady),
    **dict.fromkeys(("429", "RESOURCE_EXHAUSTED"), Overloaded),
    **dict.fromkeys(("502",), Unreachable),
    **dict.fromkeys(("408", "504", "DEADLINE_EXCEEDED"), TimedOut),
    **dict.fromkeys(("499", "CANCELLED"), Cancelled),
    **dict.fromkeys(
        (
            *("501", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "OUT_OF_RANGE", "FAILED_PRECONDITION"),
            *("PERMISSION_DENIED", "UNAUTHENTICATED", "UNIMPLEMENTED", "UNKNOWN"),
        ),
        InvalidRequest,
    ),
}

# What Triton says in words where the code alone does not tell. Only under these codes: a model may fail with any text.
_BY_TEXT: tuple[tuple[tuple[str, ...], str, type[RequestFailed]], ...] = (
    (("503", "UNAVAILABLE"), "exceeds maximum queue size", Overloaded),
    (("503", "UNAVAILABLE"), "request timeout expired", TimedOut),
    (("503", "UNAVAILABLE"), "model load / unload is not allowed", InvalidRequest),
    (("503", "UNAVAILABLE"), "is restricted, expecting header", InvalidRequest),
    (("503", "UNAVAILABLE"), "shared memory", InvalidRequest),  # newer servers take none from clients unless told to
    (("404", "NOT_FOUND"), "has no available versions", NotReady),  # it is loading, or the server is going down
    (("500", "INTERNAL"), "failed to poll from model repository", InvalidRequest),
    (("500", "INTERNAL"), "unable to open shared memory region", InvalidRequest),
    (("500", "INTERNAL"), "invalid shared memory region", InvalidRequest),
    (("500", "INTERNAL"), "shared memory size specified with the request", InvalidRequest),
    # From here on it is gRPC itself that speaks: the other end is away, or no gRPC server, or not Triton's.
    *(
        (("UNAVAILABLE",), sign, Unreachable)
        for sign in (
            *("failed to connect", "connection refused", "connection reset", "connection closed", "connection dropped"),
            *("connection attempt", "name resolution", "dns resolution", "errors resolving", "socket closed"),
            *("broken pipe", "recvmsg", "sendmsg", "stream removed", "goaway", "handshake", "endpoint closing"),
            *("transport closed", "keepalive", "failed parsing http/2"),
        )
    ),
    (("UNAVAILABLE", "UNIMPLEMENTED", "UNKNOWN"), "http2 header with status", Unreachable),
)

# What to do about it, where the kind alone does not say; the signs are regular expressions.
_NEXT_STEP: tuple[tuple[str, str], ...] = (
    ("model load / unload is not allowed", "start the server with --model-control-mode=explicit"),
    ("is restricted, expecting header", "give the header in Connections(headers=…)"),
    ("failed to poll from model repository", "check that it is in the repository and what the server's log says of it"),
    ("stub process", "the model's process crashed: read the server's log, then unload and load the model"),
    ("shared memory.*disabled(?!.*allow-client-shm)", "start the server with --allow-client-shm=true"),
    (r"\bssl\b|\btls\b|certificate", "check the files of Connections(tls=…), and that the server speaks TLS"),
    ("failed parsing http/2", "check that it is Triton's gRPC port"),
    ("socket closed", "check address and port, and that it is Triton's gRPC port"),
    ("http2 header with status", "check that it is Triton's gRPC port"),
    ("expected http/", "check that it is Triton's HTTP port"),
)


def closed() -> InvalidInput:
    """What a closed client answers."""
    return InvalidInput("This client is closed: make another one, or call it within its with block.")


def forked() -> InvalidInput:
    """What a gRPC client answers in a child of the process that has used it."""
    return InvalidInput(
        "This client used gRPC before the process was forked, which gRPC does not survive: make a client in each "
        "process, and start them with 'spawn' or use HTTP."
    )


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
    if (answer := _answer(error)) is not None:
        return _refused(about, *answer)
    if isinstance(error, (TimeoutError, grpc.FutureTimeoutError)):
        return TimedOut(f"No answer from {about} in time; give it more, or check whether the server is overloaded.")
    if isinstance(error, grpc.FutureCancelledError):
        return Cancelled(f"{about}: the request was cancelled here.")
    if isinstance(error, (OSError, HTTPException)):
        return _unreachable(about, str(error) or type(error).__name__)
    if isinstance(error, (grpc.RpcError, grpc.aio.BaseError)):
        return ServerError(f"{about}: gRPC failed ({error}); check that a Triton server listens there.")
    return ServerError(
        f"{about}: the answer is not one of Triton's ({type(error).__name__}: {error}); check the address."
    )


def _answer(error: Exception) -> tuple[str, str] | None:
    """The code and the words of a refusal; None when *error* is something else."""
    if isinstance(error, InferenceServerException):
        return str(error.status() or "").rpartition(".")[2], str(error.message() or "")
    if isinstance(error, grpc.RpcError) and hasattr(error, "code"):
        return getattr(error.code(), "name", ""), str(error.details() or "")
    return None


def _refused(about: str, code: str, message: str) -> RequestFailed:
    text, said = message.lower(), message.strip() or "no message"
    kind = next((kind for codes, sign, kind in _BY_TEXT if code in codes and sign in text), None)
    if kind is Unreachable:
        return _unreachable(about, said)
    kind = kind or _BY_CODE.get(code, InvalidRequest if code.startswith("4") else ServerError)
    if step := _next_step(text):
        said = f"{said.rstrip('.')}; {step}"
    return kind(f"{about}: the server answered {code or 'with an error'}: {said}")


def _unreachable(about: str, reason: str) -> Unreachable:
    step = _next_step(reason.lower()) or "check address and port"
    return Unreachable(f"Nothing answers at {about} ({reason}); expected a Triton server: {step}.")


def _next_step(text: str) -> str:
    return next((step for sign, step in _NEXT_STEP if re.search(sign, text)), "")
