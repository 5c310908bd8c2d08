"""A small client for Triton: check, send, and errors by what the caller can do."""

from tritonbatch.client.client import Client, Protocol, Request
from tritonbatch.client.errors import InvalidRequest, Overloaded, ServerError, TimedOut, Unreachable

__all__ = [
    "Client",
    "InvalidRequest",
    "Overloaded",
    "Protocol",
    "Request",
    "ServerError",
    "TimedOut",
    "Unreachable",
]
