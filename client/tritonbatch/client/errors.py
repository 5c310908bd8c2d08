"""What a request can die of, by what the caller can do, and the one place where foreign errors become these.

RequestFailed
├── Unreachable      nothing answers at the address: check it, or wait for the server
├── Overloaded       the server refused for now (queue full, stopping): send less, or again later
├── TimedOut         no answer in time, or the queue's own timeout expired: give more time, or drop it
├── InvalidRequest   the request cannot be right: fix model, tensor, type or shape
└── ServerError      the server failed on a request that looked right: read its log
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from geventhttpclient.response import HTTPParseError
from tritonclient.utils import InferenceServerException

from tritonbatch.errors import RequestFailed


class Unreachable(RequestFailed):
    """Nothing answers at the address."""

    exit_code = 2


class Overloaded(RequestFailed):
    """The server refuses for now: its queue is full, or it is stopping or not ready."""


class TimedOut(RequestFailed):
    """No answer in time."""


class InvalidRequest(RequestFailed):
    """The request cannot be right; sending it again gives the same answer."""

    exit_code = 2


class ServerError(RequestFailed):
    """The server failed on a request that looked right."""


# HTTP codes and gRPC names that mean the same to a caller (Triton maps UNAVAILABLE to 503 and so on).
_KINDS: dict[str, type[RequestFailed]] = {
    **dict.fromkeys(("503", "429", "UNAVAILABLE", "RESOURCE_EXHAUSTED"), Overloaded),
    **dict.fromkeys(("408", "499", "504", "DEADLINE_EXCEEDED", "CANCELLED"), TimedOut),
    **dict.fromkeys(("400", "404", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "UNKNOWN"), InvalidRequest),
}
_CONNECT = ("failed to connect", "connection refused", "name resolution", "dns resolution", "connection reset")


@contextmanager
def mapped_errors(url: str, model: str | None = None) -> Iterator[None]:
    """Turn whatever tritonclient, gRPC or the sockets raise inside into one of this module's errors."""
    about = f"{url}, model {model!r}" if model else url
    try:
        yield
    except InferenceServerException as error:
        raise _from_server(about, error) from error
    except TimeoutError as error:
        raise TimedOut(
            f"No answer from {about} in time; give it more, or check whether the server is overloaded."
        ) from error
    except (OSError, HTTPParseError) as error:
        raise Unreachable(
            f"Nothing answers at {about} ({error}); expected a Triton server: check address and port."
        ) from error


def _from_server(about: str, error: InferenceServerException) -> RequestFailed:
    status = str(error.status() or "").rpartition(".")[2]
    message = (error.message() or "no message").strip()
    if status == "UNAVAILABLE" and any(sign in message.lower() for sign in _CONNECT):
        return Unreachable(f"Nothing answers at {about} ({message}); expected a Triton server: check address and port.")
    kind = TimedOut if "Request timeout expired" in message else _KINDS.get(status, ServerError)
    return kind(f"{about}: the server answered {status or 'with an error'}: {message}")
