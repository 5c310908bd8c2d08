"""OpenTelemetry spans around requests, for callers who bring a tracer; nothing of it is imported otherwise."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

from tritonbatch.client.message import Request
from tritonbatch.errors import NotSupported


class Tracer(Protocol):
    """What is needed of ``opentelemetry.trace.Tracer``."""

    def start_as_current_span(self, name: str, *args: Any, **kwargs: Any) -> AbstractContextManager[Any]:
        """Begin a span that ends with the ``with`` block."""


@contextmanager
def traced(tracer: Tracer, request: Request) -> Iterator[dict[str, str]]:
    """A client span around one request with all its attempts; gives the headers (``traceparent``) that carry it on.

    Raises:
        NotSupported: a tracer was given, but opentelemetry-api is not installed.
    """
    try:
        from opentelemetry.propagate import inject  # noqa: PLC0415 - optional
        from opentelemetry.trace import SpanKind  # noqa: PLC0415
    except ImportError as error:
        raise NotSupported("A tracer was given, but OpenTelemetry is missing: install tritonbatch[tracing].") from error
    attributes: dict[str, str | int] = {
        "rpc.system": "triton",
        "triton.model": request.model,
        "triton.rows": request.rows,
    }
    for key, value in (("version", request.options.version), ("request_id", request.options.request_id)):
        if value:
            attributes[f"triton.{key}"] = value
    if request.options.priority:
        attributes["triton.priority"] = request.options.priority
    kind = SpanKind.CLIENT
    # The span records an exception that leaves it, so a failed request shows as one.
    with tracer.start_as_current_span(f"infer {request.model}", kind=kind, attributes=attributes):
        headers: dict[str, str] = {}
        inject(headers)
        yield headers
