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
from tritonbatch.client.fixed_batches import Plan
from tritonbatch.client.message import Answer, Request
from tritonbatch.client.micro_batcher import AsyncMicroBatcher, MicroBatcher
from tritonbatch.client.options import Connections, Options, Protocol, Retry, Tls
from tritonbatch.client.shared_memory import AsyncSharedMemory, SharedMemory
from tritonbatch.client.static_batcher import AsyncStaticBatcher, StaticBatcher
from tritonbatch.client.timing import Timing, infer_timed, infer_timed_async
from tritonbatch.errors import InvalidInput, NotSupported, RequestFailed

__all__ = [
    "Answer",
    "AsyncClient",
    "AsyncMicroBatcher",
    "AsyncSharedMemory",
    "AsyncStaticBatcher",
    "Cancelled",
    "Client",
    "Connections",
    "Contract",
    "InvalidInput",
    "InvalidRequest",
    "MicroBatcher",
    "NotReady",
    "NotSupported",
    "Options",
    "Overloaded",
    "Plan",
    "Protocol",
    "Request",
    "RequestFailed",
    "Retry",
    "ServerError",
    "SharedMemory",
    "StaticBatcher",
    "Tensor",
    "TimedOut",
    "Timing",
    "Tls",
    "TryAgain",
    "Unreachable",
    "infer_timed",
    "infer_timed_async",
]
