"""What callers get wrong beside their inputs: refused with one sentence, before anything is sent."""

from __future__ import annotations

import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tritonbatch.client import Client, Connections, InvalidRequest, Options, Protocol, Retry, TimedOut
from tritonbatch.errors import InvalidInput
from tritonbatch.server import EmbeddedServer

X = {"x": np.ones((1, 1), np.float32)}


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Options(version=1), "version is 1: expected text"),  # type: ignore[arg-type]
        (lambda: Options(request_id=7), "request_id is 7: expected text"),  # type: ignore[arg-type]
        (lambda: Options(priority=-1), "priority is -1"),
        (lambda: Options(priority=2**32), "priority is 4294967296"),
        (lambda: Options(priority=1.5), "priority is 1.5"),  # type: ignore[arg-type]
        (lambda: Options(parameters={"priority": 1}), "Triton's own.*Options"),
        (lambda: Options(parameters={"timeout": 5}), "Triton's own.*timeout_s"),
        (lambda: Options(parameters={"sequence_id": 5}), "sequences are not supported"),
        (lambda: Options(parameters={"a": [1]}), "'a' is .1.: expected bool, int, float or str"),  # type: ignore[dict-item]
        (lambda: Options(parameters={"a": np.int64(3)}), "expected bool, int"),  # type: ignore[dict-item]
        (lambda: Options(parameters={"a": 2**70}), "expected bool, int"),
        (lambda: Retry(attempts=0), "attempts are 0"),
        (lambda: Retry(hedge_after_s=-1), "hedge_after_s is -1"),
        (lambda: Retry(budget_ratio=float("nan")), "budget_ratio is nan"),
        (lambda: Connections(limit=0), "limit of connections is 0"),
        (lambda: Connections(headers={"a b": "c"}), "header 'a b'"),
        (lambda: Connections(headers={"a": "c\r\nHost: evil"}), "cannot be sent"),
        (lambda: Connections(headers={"a": "ü"}), "printable ASCII"),
        (lambda: Client("localhost:1", timeout_s=float("nan")), "timeout is nan"),
        (lambda: Client("localhost:1", timeout_s="5"), "timeout is '5'"),  # type: ignore[arg-type]
    ],
)
def test_what_cannot_be_is_refused_when_it_is_made(make: Callable[[], Any], says: str) -> None:
    """The sentence names the value and what was expected."""
    with pytest.raises(InvalidInput, match=says):
        make()


@pytest.mark.triton
def test_outputs_may_be_a_list_or_one_name(connect: Callable[..., Any]) -> None:
    """The obvious spellings mean what they say."""
    client = connect()
    for outputs in ("y", ["y"], ("y",)):
        assert list(client.infer("free", X, options=Options(outputs=outputs))) == ["y"]


@pytest.mark.triton
def test_times_that_are_none_are_refused(connect: Callable[..., Any]) -> None:
    """Infinite, missing or textual timeouts are the caller's mistake; a huge one is a day; none left is TimedOut."""
    client = connect()
    for timeout_s in (float("inf"), float("nan"), "5"):
        for model in ("free", "sleeper"):  # the second one passes it on in microseconds
            with pytest.raises(InvalidInput, match="expected seconds, a finite number"):
                client.infer(model, X, timeout_s=timeout_s)
    with pytest.raises(InvalidInput, match="expected seconds"):
        client.infer_many("free", X, timeout_s=float("inf"))
    for timeout_s in (0, -1, -1e30):
        with pytest.raises(TimedOut, match="free"):
            client.infer("free", X, timeout_s=timeout_s)
    assert client.infer("free", X, timeout_s=1e19)["y"].item() == 1


@pytest.mark.triton
def test_inputs_and_configurations_of_the_wrong_kind_are_refused(connect: Callable[..., Any]) -> None:
    """An array in place of a mapping, and a dict in place of a ModelConfig."""
    client = connect()
    with pytest.raises(InvalidRequest, match="expected a mapping"):
        client.infer("free", X["x"])
    with pytest.raises(InvalidInput, match="config is a dict: expected tritonclient's ModelConfig"):
        client.load("free", {"max_batch_size": 3})


@pytest.mark.triton
def test_answers_are_alike_over_both_protocols(connect: Callable[..., Any]) -> None:
    """Arrays of an answer cannot be written to, whichever way they came."""
    assert not connect().infer("free", X)["y"].flags.writeable


@pytest.fixture
def silent() -> Iterator[str]:
    """A port that takes connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("call", ["infer", "infer_many"])
def test_the_deadline_covers_learning_the_model(silent: str, protocol: Protocol, call: str) -> None:
    """The first call also fetches metadata and configuration, within its own time and not the client's."""
    with Client(silent, protocol=protocol, timeout_s=60) as client:
        began = time.monotonic()
        with pytest.raises(TimedOut):
            getattr(client, call)("free", X, timeout_s=0.3)
        assert time.monotonic() - began < 30  # a guard: the client's own would be a minute


@pytest.mark.triton
def test_many_threads_may_forget_a_model_at_once(client_server: EmbeddedServer) -> None:
    """Loading a model makes every thread's next request learn it anew; none trips over another."""
    interval = sys.getswitchinterval()
    with Client(client_server.http_url) as client, ThreadPoolExecutor(8) as threads:
        core, known = client._core, client.contract("free")

        def work() -> None:
            for _ in range(1000):
                for version in "abcde":
                    core._contracts["free", version] = known
                core.forget("free")

        sys.setswitchinterval(1e-6)
        try:
            for done in [threads.submit(work) for _ in range(8)]:
                done.result(timeout=60)
        finally:
            sys.setswitchinterval(interval)
