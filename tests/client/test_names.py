"""The public names: what is promised is there, typed, and nothing else is."""

from __future__ import annotations

import inspect

import tritonbatch.client
from tritonbatch.client import AsyncClient, Client, InvalidInput, NotSupported, RequestFailed

PROMISED = {
    *("Client", "AsyncClient", "Options", "Retry", "Connections", "Tls", "Protocol"),
    *("Request", "Answer", "Contract", "Tensor"),
    *("RequestFailed", "TryAgain", "Unreachable", "NotReady", "Overloaded", "InvalidRequest"),
    *("TimedOut", "Cancelled", "ServerError", "InvalidInput", "NotSupported"),
    *("StaticBatcher", "AsyncStaticBatcher", "Plan", "MicroBatcher", "AsyncMicroBatcher"),
    *("SharedMemory", "AsyncSharedMemory", "Timing", "infer_timed", "infer_timed_async"),
}
METHODS = {
    *("infer", "infer_many", "request", "send", "ready", "load", "unload", "close"),
    *("server_metadata", "metadata", "config", "contract", "statistics", "settled_statistics"),
}


def _methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_the_names_are_those_promised() -> None:
    """A name that comes or goes is a decision: it changes this list and the changelog."""
    assert set(tritonbatch.client.__all__) == PROMISED
    assert all(hasattr(tritonbatch.client, name) for name in PROMISED)


def test_every_error_is_a_failed_request() -> None:
    """One except clause catches what a request dies of; mistakes of the caller and lacks of the machine are none."""
    kinds = [getattr(tritonbatch.client, name) for name in PROMISED]
    errors = {kind for kind in kinds if inspect.isclass(kind) and issubclass(kind, Exception)}
    assert len(errors) == 11
    assert {kind for kind in errors if not issubclass(kind, RequestFailed)} == {InvalidInput, NotSupported}


def test_both_clients_have_the_same_methods() -> None:
    """What can be called can be awaited, with the same arguments."""
    blocking, awaited = _methods(Client), _methods(AsyncClient)
    assert set(blocking) == set(awaited) == METHODS
    for name, signature in blocking.items():
        assert signature.parameters.keys() == awaited[name].parameters.keys(), name
    assert inspect.signature(Client).parameters.keys() == inspect.signature(AsyncClient).parameters.keys()
