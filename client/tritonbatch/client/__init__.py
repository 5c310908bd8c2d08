"""A client for Triton: it knows the model, keeps deadlines, and its errors say what the caller can do."""

from tritonbatch.client.async_client import AsyncClient
from tritonbatch.client.client import Client
from tritonbatch.client.contract import Contract, Tensor
from tritonbatch.client.errors import (
    Cancelled,
    InvalidRequest,
    NotReady,
    Overloaded,
    ServerError,
    TimedOut,
    TryAgain,
    Unreachable,
)
from tritonbatch.client.message import Answer, Request
from tritonbatch.client.options import Connections, Options, Protocol, Retry

__all__ = [
    "Answer",
    "AsyncClient",
    "Cancelled",
    "Client",
    "Connections",
    "Contract",
    "InvalidRequest",
    "NotReady",
    "Options",
    "Overloaded",
    "Protocol",
    "Request",
    "Retry",
    "ServerError",
    "Tensor",
    "TimedOut",
    "TryAgain",
    "Unreachable",
]
