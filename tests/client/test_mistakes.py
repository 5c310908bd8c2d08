"""What callers get wrong beside their inputs: refused with one sentence, before anything is sent."""

from __future__ import annotations

import copy
import pickle
import socket
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.client import (
    AsyncClient,
    AsyncMicroBatcher,
    AsyncStaticBatcher,
    Client,
    Connections,
    Contract,
    InvalidInput,
    InvalidRequest,
    MicroBatcher,
    Options,
    Protocol,
    Retry,
    SharedMemory,
    StaticBatcher,
    TimedOut,
)
from tritonbatch.client.contract import check_options
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
        (lambda: Options(parameters={1: 2}), "parameter 1 has no name: expected text"),  # type: ignore[dict-item]
        (lambda: Options(parameters=[1]), "parameters are .1.: expected a mapping"),  # type: ignore[arg-type]
        (lambda: Options(outputs=5), "outputs are 5: expected names"),  # type: ignore[arg-type]
        (lambda: Options(outputs=("y", "y")), "expected each name once"),
        (lambda: Client(None), "addresses are None: expected HOST:PORT"),  # type: ignore[arg-type]
        (lambda: Client(5), "addresses are 5: expected HOST:PORT"),  # type: ignore[arg-type]
        (lambda: Client([5]), "address 5 is no text"),  # type: ignore[list-item]
        (lambda: Client("a:1", retry=3), "retry is 3: expected a Retry"),  # type: ignore[arg-type]
        (lambda: Client("a:1", connections=3), "connections is 3: expected Connections"),  # type: ignore[arg-type]
        (lambda: AsyncClient("a:1", connections=3), "connections is 3"),  # type: ignore[arg-type]
        (lambda: Retry(attempts="3"), "attempts are '3': expected an integer"),  # type: ignore[arg-type]
        (lambda: Retry(first_wait_s="1"), "first_wait_s is '1'"),  # type: ignore[arg-type]
        (lambda: Retry(first_wait_s=None), "first_wait_s is None"),  # type: ignore[arg-type]
        (lambda: Connections(headers={"A": 1}), "header 'A': 1 cannot be sent: expected texts"),  # type: ignore[dict-item]
        (lambda: Connections(headers="A"), "headers are 'A': expected a mapping"),  # type: ignore[arg-type]
        (lambda: Connections(limit="1"), "limit of connections is '1'"),  # type: ignore[arg-type]
        (lambda: SharedMemory(None, "m", rows=1), "client is None: expected a Client"),  # type: ignore[arg-type]
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
def test_calls_with_what_is_no_model_option_or_request_are_refused(connect: Callable[..., Any]) -> None:
    """None and numbers in the place of names, options, requests and counts get one sentence each."""
    client = connect()
    for model in (None, 1, "", ["free"]):
        for call in (client.infer, client.infer_many, client.request):
            with pytest.raises(InvalidInput, match=r"The model is .*expected its name"):
                call(model, X)
    for ask in (client.contract, client.metadata, client.statistics, client.load):
        with pytest.raises(InvalidInput, match="The model is None"):
            ask(None)
    with pytest.raises(InvalidInput, match="The model is 5"):
        client.ready(5)
    with pytest.raises(InvalidInput, match="options is None"):
        client.infer("free", X, options=None)
    for in_flight in ("2", None, 1.0):
        with pytest.raises(InvalidInput, match=r"in_flight is .*: expected an integer"):
            client.infer_many("free", X, in_flight=in_flight)
    with pytest.raises(InvalidInput, match="The request is None"):
        client.send(None)


@pytest.mark.triton
def test_batchers_refuse_wrong_sizes_and_the_other_kind_of_client(client_server: EmbeddedServer) -> None:
    """A size that is no integer is named, and an AsyncClient is sent to the batcher made for it."""
    other: Any = AsyncClient(client_server.http_url)
    with Client(client_server.http_url) as client:
        for size in ("8", None, 8.0, True):
            wrong: Any = size
            with pytest.raises(InvalidInput, match=r"batch_size is .*: expected an integer"):
                StaticBatcher(client, "free", wrong)
            with pytest.raises(InvalidInput, match=r"max_rows is .*: expected an integer"):
                MicroBatcher(client, "free", max_rows=wrong, max_delay_s=0)
            with pytest.raises(InvalidInput, match=r"max_rows is .*: expected an integer"):
                AsyncMicroBatcher(other, "free", max_rows=wrong, max_delay_s=0)
            with pytest.raises(InvalidInput, match=r"batch_size is .*: expected an integer"):
                AsyncStaticBatcher(other, "free", wrong)
        wrong = "1"
        with pytest.raises(InvalidInput, match="max_delay_s is '1': expected seconds"):
            MicroBatcher(client, "free", max_rows=1, max_delay_s=wrong)
        with pytest.raises(InvalidInput, match="for an AsyncClient take AsyncStaticBatcher"):
            StaticBatcher(other, "free", 8)
        with pytest.raises(InvalidInput, match="for an AsyncClient take AsyncMicroBatcher"):
            MicroBatcher(other, "free", max_rows=8, max_delay_s=0)
        wrong = client
        with pytest.raises(InvalidInput, match="for a Client take StaticBatcher"):
            AsyncStaticBatcher(wrong, "free", 8)
        with pytest.raises(InvalidInput, match="for a Client take MicroBatcher"):
            AsyncMicroBatcher(wrong, "free", max_rows=8, max_delay_s=0)
        wrong = None
        with pytest.raises(InvalidInput, match="got NoneType as client"):
            MicroBatcher(wrong, "free", max_rows=8, max_delay_s=0)


@pytest.mark.parametrize(("priority", "fits"), [(0, True), (3, True), (4, False), (99, False)])
def test_a_priority_beyond_the_levels_is_refused(priority: int, *, fits: bool) -> None:
    """Triton ignores such a priority; the message names the levels."""
    config = ModelConfig()
    config.dynamic_batching.priority_levels = 3
    known = Contract(model="m", max_batch_size=8, inputs={}, outputs={}, config=config)
    if fits:
        check_options(known, Options(priority=priority))
        return
    with pytest.raises(InvalidRequest, match=f"got priority {priority}; expected 1 .the highest. to 3"):
        check_options(known, Options(priority=priority))


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("take", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_client_is_neither_pickled_nor_copied(kind: type[Client | AsyncClient], take: Callable[[Any], Any]) -> None:
    """What a process pool would do with it gets a sentence instead of a lock that cannot be pickled."""
    with pytest.raises(TypeError, match=r"make an? .*Client in each process"):
        take(kind("localhost:1"))


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
