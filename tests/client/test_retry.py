"""What is sent again and when: the decision as pure tables, and the attempts as a server counts them."""

from __future__ import annotations

import asyncio
import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.client import (
    AsyncClient,
    Cancelled,
    Client,
    InvalidRequest,
    NotReady,
    Overloaded,
    Protocol,
    Retry,
    ServerError,
    TimedOut,
    Unreachable,
)
from tritonbatch.client.retry import RESERVE, RetryBudget, wait_before_retry
from tritonbatch.client.threads import _Cancellation
from tritonbatch.errors import RequestFailed

GUARD_S = 20.0
QUICK = Retry(first_wait_s=0.001, longest_wait_s=0.002)
ROW = {"x": np.array([[2.0]], np.float32)}


@pytest.mark.parametrize(
    ("kind", "repeated"),
    [
        *((kind, True) for kind in (Unreachable, NotReady, Overloaded)),
        *((kind, False) for kind in (InvalidRequest, TimedOut, Cancelled, ServerError)),
    ],
)
def test_only_failures_that_time_can_heal_are_repeated(kind: type[RequestFailed], repeated: bool) -> None:  # noqa: FBT001
    """Unreachable, NotReady and Overloaded are tried again; what would fail or be late again is not."""
    wait_s = wait_before_retry(Retry(), kind("why"), 1, 60.0, random.Random(0))
    assert (wait_s is not None) is repeated


@pytest.mark.parametrize(("attempts", "attempt", "again"), [(1, 1, False), (3, 1, True), (3, 2, True), (3, 3, False)])
def test_the_attempts_are_counted(attempts: int, attempt: int, again: bool) -> None:  # noqa: FBT001
    """After the last of the attempts nothing is sent again."""
    wait_s = wait_before_retry(Retry(attempts=attempts), NotReady("why"), attempt, 60.0, random.Random(0))
    assert (wait_s is not None) is again


@pytest.mark.parametrize(("attempt", "most_s"), [(1, 0.05), (2, 0.1), (3, 0.2), (5, 0.8), (6, 1.0), (5000, 1.0)])
def test_the_wait_doubles_up_to_the_longest_and_is_spread(attempt: int, most_s: float) -> None:
    """Waits lie anywhere between nothing and a bound that doubles; a thousand of them fill that range."""
    retry, rng = Retry(attempts=10_000), random.Random(attempt)
    waits = [wait_before_retry(retry, NotReady("why"), attempt, 60.0, rng) or 0.0 for _ in range(1000)]
    assert 0 <= min(waits) < 0.1 * most_s
    assert 0.9 * most_s < max(waits) <= most_s


@given(
    retry=st.builds(
        Retry,
        attempts=st.integers(1, 10_000),
        first_wait_s=st.floats(0, 10),
        longest_wait_s=st.floats(0, 100),
    ),
    attempt=st.integers(1, 10_000),
    left_s=st.floats(-10, 100),
    seed=st.integers(0, 2**32),
)
def test_no_wait_reaches_the_deadline(retry: Retry, attempt: int, left_s: float, seed: int) -> None:
    """Whatever the settings, a wait is within its bounds and ends before the deadline, or there is none."""
    wait_s = wait_before_retry(retry, Overloaded("why"), attempt, left_s, random.Random(seed))
    if wait_s is not None:
        assert attempt < retry.attempts
        assert 0 <= wait_s < left_s
        assert wait_s <= retry.longest_wait_s
        assert wait_s <= retry.first_wait_s * 2 ** min(attempt - 1, 100)


def test_a_storm_of_failures_stops_the_retries() -> None:
    """A thousand failing calls cause no more extra attempts than the reserve."""
    budget = RetryBudget(0.1)
    assert sum(budget.spend() for _ in range(1000)) == RESERVE


@settings(max_examples=50)
@given(answered=st.lists(st.booleans(), max_size=2000), ratio=st.floats(0, 1))
def test_retries_are_bounded_by_what_is_answered(answered: list[bool], ratio: float) -> None:
    """Of any mix of answers and failures, retries are at most the ratio of the answers and the reserve."""
    budget, spent = RetryBudget(ratio), 0
    for good in answered:
        if good:
            budget.earn()
        else:
            spent += budget.spend()
    assert spent <= RESERVE + ratio * sum(answered) + 1e-6


def test_the_budget_counts_right_between_threads() -> None:
    """Sixteen threads that spend at once get no token twice."""
    budget = RetryBudget(0.0)
    with ThreadPoolExecutor(16) as threads:
        spent = list(threads.map(lambda _: budget.spend(), range(1000)))
    assert sum(spent) == RESERVE


# ---- Attempts, as a server that plays its part counts them


@dataclass
class Played:
    """A server over HTTP: *statuses* are its answers to inferences, then 200; *stateful* makes its model a sequence."""

    statuses: list[int]
    stateful: bool = False
    waits_s: list[float] = field(default_factory=list)
    attempts: int = 0
    address: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, path: str) -> tuple[int, bytes]:
        """Status and JSON for *path*; an inference takes the next wait and the next status."""
        if path.endswith("/config"):
            sequence: dict[str, Any] = {"sequence_batching": {}} if self.stateful else {}
            tensors = {
                "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [1]}],
                "output": [{"name": "y", "data_type": "TYPE_FP32", "dims": [1]}],
            }
            return 200, json.dumps({"name": "m", "max_batch_size": 8, **tensors, **sequence}).encode()
        if not path.endswith("/infer"):
            shape = {"datatype": "FP32", "shape": [-1, 1]}
            content = {"name": "m", "inputs": [{"name": "x", **shape}], "outputs": [{"name": "y", **shape}]}
            return 200, json.dumps({"versions": ["1"], "platform": "", **content}).encode()
        with self.lock:
            self.attempts += 1
            number = self.attempts
            status = self.statuses.pop(0) if self.statuses else 200
            wait_s = self.waits_s.pop(0) if self.waits_s else 0.0
        time.sleep(wait_s)
        output = {"name": "y", "datatype": "FP32", "shape": [1, 1], "parameters": {"binary_data_size": 4}}
        ok = json.dumps({"model_name": "m", "model_version": "1", "outputs": [output]}).encode()
        return (200, ok + np.float32(number).tobytes()) if status == 200 else (status, b'{"error": "played"}')


@contextmanager
def _playing(played: Played) -> Iterator[Played]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def do_GET(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, body = played.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            if status == 200 and self.path.endswith("/infer"):
                self.send_header("Inference-Header-Content-Length", str(len(body) - 4))
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET  # noqa: N815 - the base class looks for this name

        def log_message(self, *_: object) -> None:
            pass

        def finish(self) -> None:
            try:
                super().finish()
            except OSError:
                self.close_connection = True  # the client has gone: a hedge that lost

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.handle_error = lambda *_: None  # type: ignore[method-assign]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        played.address = f"127.0.0.1:{server.server_port}"
        try:
            yield played
        finally:
            server.shutdown()
            thread.join(GUARD_S)


Ask = Callable[..., float | RequestFailed]


@pytest.fixture(params=[False, True], ids=["threads", "asyncio"])
def ask(request: pytest.FixtureRequest) -> Ask:
    """``ask(address, retry, timeout_s=…)``: one inference from threads, and from asyncio; its answer or error."""

    async def awaited(address: str, retry: Retry | None, protocol: Protocol, timeout_s: float) -> float:
        async with AsyncClient(address, retry=retry, protocol=protocol, timeout_s=timeout_s) as client:
            return float((await client.infer("m", ROW))["y"].item())

    def asked(
        address: str, retry: Retry | None, *, protocol: Protocol = "http", timeout_s: float = GUARD_S
    ) -> float | RequestFailed:
        started = time.monotonic()
        try:
            if request.param:
                return asyncio.run(awaited(address, retry, protocol, timeout_s))
            with Client(address, retry=retry, protocol=protocol, timeout_s=timeout_s) as client:
                return float(client.infer("m", ROW)["y"].item())
        except RequestFailed as failure:
            return failure
        finally:
            assert time.monotonic() - started < GUARD_S

    return asked


@pytest.mark.parametrize(
    ("statuses", "retry", "attempts", "outcome"),
    [
        ([503], QUICK, 2, 2.0),
        ([503, 502], QUICK, 3, 3.0),
        ([503, 503, 503, 503], QUICK, 3, NotReady),
        ([503], None, 1, NotReady),
        ([400], QUICK, 1, InvalidRequest),
        ([500], QUICK, 1, ServerError),
        ([504], QUICK, 1, TimedOut),
        ([429], QUICK, 2, 2.0),
    ],
)
def test_the_server_sees_as_many_attempts_as_decided(
    ask: Ask, statuses: list[int], retry: Retry | None, attempts: int, outcome: float | type[RequestFailed]
) -> None:
    """A refusal that may pass is tried again and can succeed; one that stays is sent once, as is all without retry."""
    with _playing(Played(list(statuses))) as played:
        got = ask(played.address, retry)
    assert played.attempts == attempts
    assert (got if isinstance(got, float) else type(got)) == outcome


def test_a_sequence_is_not_repeated(ask: Ask) -> None:
    """A stateful model may have counted the attempt already: it is sent once, and never hedged."""
    with _playing(Played([503], stateful=True)) as played:
        assert type(ask(played.address, QUICK)) is NotReady
        assert played.attempts == 1
    with _playing(Played([], stateful=True, waits_s=[0.3])) as played:
        assert ask(played.address, Retry(hedge_after_s=0.05)) == 1.0
        assert played.attempts == 1


def test_the_deadline_covers_all_attempts_together(ask: Ask) -> None:
    """Refusals that each take a while end with the one deadline, not after all the attempts they would be given."""
    with _playing(Played([503] * 100, waits_s=[0.2] * 100)) as played:
        got = ask(played.address, Retry(attempts=100, first_wait_s=0.01), timeout_s=0.7)
        assert isinstance(got, (TimedOut, NotReady))
        assert 1 < played.attempts <= 4


def test_a_storm_is_bounded_for_a_whole_client() -> None:
    """A client all of whose requests are refused soon sends each of them only once."""
    with _playing(Played([503] * 1000)) as played, Client(played.address, retry=QUICK) as client:
        for _ in range(100):
            with pytest.raises(NotReady):
                client.infer("m", ROW)
        assert 100 < played.attempts <= 100 + RESERVE


def test_the_hedge_that_answers_first_wins(ask: Ask) -> None:
    """When the first attempt is slow, a second one is sent and its answer taken."""
    with _playing(Played([], waits_s=[2.0])) as played:
        assert ask(played.address, Retry(hedge_after_s=0.05)) == 2.0
        assert played.attempts == 2


def test_no_hedge_is_sent_when_the_answer_comes_in_time(ask: Ask) -> None:
    """An answer before the hedge's time is all that the server sees."""
    with _playing(Played([])) as played:
        assert ask(played.address, Retry(hedge_after_s=5.0)) == 1.0
        assert played.attempts == 1


def test_hedges_are_paid_from_the_budget(ask: Ask) -> None:
    """Without a token no request is sent twice, however slow the first one is."""
    with _playing(Played([], waits_s=[0.3] * 20)) as played:
        client = Client(played.address, retry=Retry(hedge_after_s=0.001, budget_ratio=0))
        with client:
            for _ in range(20):
                client.infer("m", ROW)
        assert 20 + RESERVE >= played.attempts > 20
        assert client._core._budget._tokens < 1
    with _playing(Played([], waits_s=[0.2])) as played:
        assert ask(played.address, Retry(hedge_after_s=0.01, budget_ratio=0)) == 2.0
        assert played.attempts == 2


def test_an_exchange_that_was_broken_off_as_it_ended_counts_as_lost() -> None:
    """What it used is broken, so its result is not taken: its connection must not go back to the others."""
    cancellation, broken = _Cancellation(), []

    def ending() -> int:
        cancellation.cancel()
        return 1

    with pytest.raises(Cancelled):
        cancellation.run(ending, lambda: broken.append(1))
    assert broken == [1]


class _PlayedGrpc(grpc.GenericRpcHandler):  # type: ignore[misc]
    """A server over gRPC whose first inference waits for its cancellation, and whose later ones answer at once."""

    def __init__(self, delay_us: int = 0) -> None:
        self.delay_us = delay_us
        self.ended = threading.Event()
        self.cancelled = threading.Event()
        self.attempts = 0
        self._first = threading.Lock()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        method = handler_call_details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(
            {"ModelInfer": self._infer, "ModelConfig": self._config}.get(method, self._metadata)
        )

    def _infer(self, _: bytes, context: grpc.ServicerContext) -> bytes:
        self.attempts += 1
        if self._first.acquire(blocking=False):
            context.add_callback(self.cancelled.set)
            (self.ended if self.delay_us else self.cancelled).wait(GUARD_S)
        answer = pb.ModelInferResponse(model_name="m", raw_output_contents=[np.float32(7).tobytes()])
        answer.outputs.add(name="y", datatype="FP32", shape=[1, 1])
        return bytes(answer.SerializeToString())

    def _config(self, *_: object) -> bytes:
        config = ModelConfig(name="m", max_batch_size=8)
        config.input.add(name="x", data_type="TYPE_FP32", dims=[1])
        config.output.add(name="y", data_type="TYPE_FP32", dims=[1])
        config.dynamic_batching.max_queue_delay_microseconds = self.delay_us
        return bytes(pb.ModelConfigResponse(config=config).SerializeToString())

    def _metadata(self, *_: object) -> bytes:
        answer = pb.ModelMetadataResponse(name="m", versions=["1"])
        for tensors, name in ((answer.inputs, "x"), (answer.outputs, "y")):
            tensors.add(name=name, datatype="FP32", shape=[-1, 1])
        return bytes(answer.SerializeToString())


def test_the_hedge_that_lost_is_cancelled_on_the_server(ask: Ask) -> None:
    """Over gRPC the slow attempt is cancelled as soon as the other one has answered, and the server learns of it."""
    with _playing_grpc(_PlayedGrpc()) as (played, address):
        assert ask(address, Retry(hedge_after_s=0.1), protocol="grpc") == 7.0
        assert played.cancelled.wait(GUARD_S)
        assert played.attempts == 2


@pytest.mark.parametrize("kind", ["threads", "asyncio"])
def test_the_hedge_that_lost_runs_on_where_the_model_has_a_queue_delay(kind: str) -> None:
    """There a cancelled request would hold up its neighbours: the server learns of nothing before it has answered."""
    retry = Retry(hedge_after_s=0.1)

    async def awaited(played: _PlayedGrpc, address: str) -> None:
        async with AsyncClient(address, retry=retry, protocol="grpc") as client:
            assert (await client.infer("m", ROW))["y"].item() == 7.0
            assert not await asyncio.to_thread(played.cancelled.wait, 0.3)
            played.ended.set()
            for _ in range(100):
                await asyncio.sleep(0.02 if client._transport._losing else 0)  # type: ignore[attr-defined]
            assert client._core.balancer.endpoints[0].outstanding == 0

    with _playing_grpc(_PlayedGrpc(delay_us=1000)) as (played, address):
        if kind == "asyncio":
            asyncio.run(awaited(played, address))
        else:
            with Client(address, retry=retry, protocol="grpc") as client:
                assert client.infer("m", ROW)["y"].item() == 7.0
                assert not played.cancelled.wait(0.3)
                played.ended.set()
        assert played.attempts == 2


def test_closing_ends_the_hedges_that_run_on() -> None:
    """An AsyncClient leaves no task behind, also where the server never answers the one that lost."""

    async def work(address: str) -> None:
        async with (
            asyncio.timeout(GUARD_S),
            AsyncClient(address, retry=Retry(hedge_after_s=0.1), protocol="grpc") as client,
        ):
            await client.infer("m", ROW)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    with _playing_grpc(_PlayedGrpc(delay_us=1000)) as (_, address):
        asyncio.run(work(address))


@contextmanager
def _playing_grpc(played: _PlayedGrpc) -> Iterator[tuple[_PlayedGrpc, str]]:
    with ThreadPoolExecutor(4) as threads:
        server = grpc.server(threads, handlers=[played])
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield played, f"127.0.0.1:{port}"
        finally:
            played.ended.set()
            server.stop(0).wait(GUARD_S)
