"""Concurrent callers that share requests: the batchers against fakes and the real server."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelMetadataResponse

from tritonbatch.client import AsyncClient, Cancelled, Client, InvalidRequest, Protocol, ServerError, Unreachable
from tritonbatch.client.micro_batcher import AsyncMicroBatcher, MicroBatcher
from tritonbatch.errors import InvalidInput
from tritonbatch.server import EmbeddedServer

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)
NEVER_S = 600.0
"""A delay that no test sits out: with it a batch leaves only when it is full, so the counts are exact."""


class Doubling:
    """A model y = 2 x of up to 4 rows of any length; *errors* are what its first calls raise (None: they answer)."""

    def __init__(self, *errors: BaseException | None) -> None:
        self.sent: list[np.ndarray] = []
        self._errors = list(errors)

    def infer(self, model: str, inputs: Any, /) -> dict[str, np.ndarray]:  # noqa: ARG002 - there is but one model
        """Answer, or raise what is next."""
        self.sent.append(inputs["x"])
        error = self._errors.pop(0) if self._errors else None
        if error is not None:
            raise error
        return {"y": 2 * inputs["x"]}

    def metadata(self, model: str, /) -> ModelMetadataResponse:
        """One input x and one output y, FP32, of shape [batch, any]."""
        tensor = {"datatype": "FP32", "shape": [-1, -1]}
        return ModelMetadataResponse(name=model, inputs=[{"name": "x", **tensor}], outputs=[{"name": "y", **tensor}])

    def config(self, model: str, /) -> ModelConfig:
        """Up to 4 rows."""
        return ModelConfig(name=model, max_batch_size=4)


class AsyncDoubling:
    """The same, awaited; with *held*, calls wait until it is set."""

    def __init__(self, *errors: BaseException | None, held: asyncio.Event | None = None) -> None:
        self.model = Doubling(*errors)
        self.asked = 0
        self._held = held

    async def infer(self, model: str, inputs: Any, /) -> dict[str, np.ndarray]:
        """Answer, or raise what is next, once nothing holds it."""
        if self._held is not None:
            await self._held.wait()
        return self.model.infer(model, inputs)

    async def metadata(self, model: str, /) -> ModelMetadataResponse:
        """As above."""
        self.asked += 1
        await asyncio.sleep(0)
        return self.model.metadata(model)

    async def config(self, model: str, /) -> ModelConfig:
        """As above."""
        return self.model.config(model)


def ones(*shape: int) -> dict[str, np.ndarray]:
    """Inputs of ones."""
    return {"x": np.ones(shape, np.float32)}


def side_by_side(jobs: Sequence[Callable[[], Any]]) -> list[Future[Any]]:
    """Run every job in a thread of its own, all at once; their ended futures."""
    start = threading.Barrier(len(jobs))

    def run(job: Callable[[], Any]) -> Any:
        start.wait(60)
        return job()

    with ThreadPoolExecutor(len(jobs)) as threads:
        futures = [threads.submit(run, job) for job in jobs]
        for future in futures:
            future.exception(timeout=120)
    return futures


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread does."""
    for _ in range(6000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("what the test waits for has not happened within a minute")


def test_a_full_batch_does_not_wait_and_kinds_do_not_mix() -> None:
    """Of eight callers with rows of two lengths, four each travel together, and each gets its own rows."""
    client = Doubling()
    with MicroBatcher(client, "double", max_rows=4, max_delay_s=NEVER_S) as batcher:
        inputs = [{"x": np.full((1, 3 + number % 2), number, np.float32)} for number in range(8)]
        futures = side_by_side([lambda each=each: batcher.infer(each) for each in inputs])
    for number, future in enumerate(futures):
        np.testing.assert_array_equal(future.result()["y"], np.full((1, 3 + number % 2), 2 * number))
    assert sorted(x.shape for x in client.sent) == [(4, 3), (4, 4)]


def test_a_lone_caller_is_sent_after_the_delay() -> None:
    """Nobody else comes, and the caller gets its answer; lists are taken as the model's type."""
    with MicroBatcher(Doubling(), "double", max_rows=4, max_delay_s=0.01) as batcher:
        np.testing.assert_array_equal(batcher.infer({"x": [[1.5, 2], [3, 4]]})["y"], [[3, 4], [6, 8]])


def test_closing_sends_what_waits_and_refuses_later_calls() -> None:
    """A caller that waits when the batcher is closed gets its answer before close returns; the next one is refused."""
    batcher = MicroBatcher(Doubling(), "double", max_rows=4, max_delay_s=NEVER_S)
    with ThreadPoolExecutor(1) as threads:
        future = threads.submit(batcher.infer, ones(1, 2))
        until(lambda: batcher._gathering.next_due() is not None)
        batcher.close()
        np.testing.assert_array_equal(future.result(60)["y"], [[2, 2]])
    with pytest.raises(InvalidInput, match="closed"):
        batcher.infer(ones(1, 2))
    batcher.close()


@pytest.mark.parametrize("error", [Unreachable("gone"), ValueError("odd")])
def test_an_error_that_is_nobodys_fault_goes_to_all(error: Exception) -> None:
    """Each caller of the batch gets its own instance, the batch's is the cause, and nothing is sent again."""
    client = Doubling(error)
    with MicroBatcher(client, "double", max_rows=2, max_delay_s=NEVER_S) as batcher:
        raised = [future.exception() for future in side_by_side([lambda: batcher.infer(ones(1, 2))] * 2)]
    assert len(client.sent) == 1
    assert raised[0] is not raised[1]
    for each in raised:
        assert type(each) is type(error)
        assert each.__cause__ is error


def test_an_interrupted_leader_does_not_strand_its_followers() -> None:
    """When the thread that sends is interrupted, only its own caller fails; the next one sends for the rest."""
    client = Doubling(KeyboardInterrupt())
    with MicroBatcher(client, "double", max_rows=4, max_delay_s=NEVER_S) as batcher:
        futures = side_by_side([lambda: batcher.infer(ones(1, 2))] * 4)
    errors = [future.exception() for future in futures]
    assert [type(error) for error in errors if error] == [KeyboardInterrupt]
    for future in (future for future, error in zip(futures, errors, strict=True) if error is None):
        np.testing.assert_array_equal(future.result()["y"], [[2, 2]])
    assert [len(x) for x in client.sent] == [4, 3]


def test_an_interruption_while_sending_one_by_one_keeps_what_was_answered() -> None:
    """Isolated requests that have their answer keep it; the rest is led by the next caller."""
    client = Doubling(ServerError("bad"), KeyboardInterrupt(), ServerError("bad"), None, ServerError("worse"))
    with MicroBatcher(client, "double", max_rows=3, max_delay_s=NEVER_S) as batcher:
        futures = side_by_side([lambda: batcher.infer(ones(1, 2))] * 3)
    kinds = {type(future.exception()) for future in futures}
    assert kinds == {KeyboardInterrupt, ServerError, type(None)}
    assert [len(x) for x in client.sent] == [3, 1, 2, 1, 1]


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        (ones(3, 2), "got 3 rows in one call; expected 1 to 2 .the batcher's max_rows"),
        (ones(0, 2), "got a batch of 0"),
        ({"z": np.ones((1, 2), np.float32)}, "got the inputs z; expected x"),
        ({"x": np.ones((1, 2), np.float64)}, "expected FP32"),
    ],
)
def test_wrong_inputs_never_reach_the_batch_of_others(inputs: dict[str, np.ndarray], says: str) -> None:
    """A mistake that can be seen beforehand is refused by itself, and nothing is sent."""
    client = Doubling()
    with (
        MicroBatcher(client, "double", max_rows=2, max_delay_s=NEVER_S) as batcher,
        pytest.raises(InvalidRequest, match=says),
    ):
        batcher.infer(inputs)
    assert not client.sent


@pytest.mark.parametrize(
    ("max_rows", "max_delay_s", "says"),
    [
        (5, 0.1, "max_rows is 5: model double takes 1 to 4 rows"),
        (0, 0.1, "max_rows is 0"),
        (4, -1, "max_delay_s is -1"),
        (4, float("nan"), "max_delay_s is nan"),
    ],
)
def test_limits_that_cannot_be_are_refused(max_rows: int, max_delay_s: float, says: str) -> None:
    """More rows than the model takes, none, and delays that are no time are the caller's mistake."""
    with pytest.raises(InvalidInput, match=says):
        MicroBatcher(Doubling(), "double", max_rows=max_rows, max_delay_s=max_delay_s)


def test_in_asyncio_the_model_is_asked_about_once_and_its_limit_kept() -> None:
    """Eight first calls at once ask for the metadata once; a batcher of too many rows is refused by its first call."""

    async def main() -> None:
        client = AsyncDoubling()
        async with AsyncMicroBatcher(client, "double", max_rows=4, max_delay_s=NEVER_S) as batcher:
            answers = await asyncio.gather(*(batcher.infer(ones(1, 2)) for _ in range(8)))
        assert all(np.array_equal(answer["y"], [[2, 2]]) for answer in answers)
        assert client.asked == 1
        assert [len(x) for x in client.model.sent] == [4, 4]
        with pytest.raises(InvalidInput, match="max_rows is 5"):
            await AsyncMicroBatcher(client, "double", max_rows=5, max_delay_s=1).infer(ones(1, 2))

    asyncio.run(main())


def test_in_asyncio_a_cancelled_caller_takes_nobody_with_it() -> None:
    """Cancelled before the batch leaves, its rows are not sent; cancelled after, the others get their answers."""

    async def main() -> None:
        held = asyncio.Event()
        client = AsyncDoubling(held=held)
        batcher = AsyncMicroBatcher(client, "double", max_rows=3, max_delay_s=NEVER_S)
        early, *others = [asyncio.create_task(batcher.infer(ones(1, 2))) for _ in range(2)]
        while batcher._gathering.next_due() is None:
            await asyncio.sleep(0)
        early.cancel()
        await asyncio.wait([early])
        others += [asyncio.create_task(batcher.infer(ones(1, 2))) for _ in range(2)]
        while not batcher._under_way:
            await asyncio.sleep(0)
        others[0].cancel()
        held.set()
        results = await asyncio.gather(early, *others, return_exceptions=True)
        assert [type(result) for result in results[:2]] == [asyncio.CancelledError] * 2
        assert [isinstance(each, dict) and each["y"].tolist() for each in results[2:]] == [[[2, 2]]] * 2
        assert [len(x) for x in client.model.sent] == [3]
        await batcher.close()
        with pytest.raises(InvalidInput, match="closed"):
            await batcher.infer(ones(1, 2))

    asyncio.run(asyncio.wait_for(main(), 60))


def test_in_asyncio_closing_sends_what_waits_and_a_lone_caller_waits_only_for_the_delay() -> None:
    """A task that waits at closing time gets its answer; with a short delay it gets it without company."""

    async def main() -> None:
        async with AsyncMicroBatcher(AsyncDoubling(), "double", max_rows=4, max_delay_s=NEVER_S) as batcher:
            waiting = asyncio.create_task(batcher.infer(ones(1, 2)))
            while batcher._gathering.next_due() is None:
                await asyncio.sleep(0)
        assert (await waiting)["y"].tolist() == [[2, 2]]
        async with AsyncMicroBatcher(AsyncDoubling(), "double", max_rows=4, max_delay_s=0.01) as batcher:
            assert (await batcher.infer(ones(2, 1)))["y"].tolist() == [[2], [2]]

    asyncio.run(asyncio.wait_for(main(), 60))


def test_in_asyncio_a_request_cancelled_from_below_leaves_nobody_waiting() -> None:
    """When the client breaks a batch off by cancelling, its callers get Cancelled instead of waiting for ever."""

    async def main() -> None:
        client = AsyncDoubling(asyncio.CancelledError())
        async with AsyncMicroBatcher(client, "double", max_rows=2, max_delay_s=NEVER_S) as batcher:
            calls = [batcher.infer(ones(1, 2)) for _ in range(2)]
            assert [type(each) for each in await asyncio.gather(*calls, return_exceptions=True)] == [Cancelled] * 2

    asyncio.run(asyncio.wait_for(main(), 60))


def rows_for(number: int, rows: int = 1) -> dict[str, np.ndarray]:
    """Inputs of `linear` that only caller *number* brings."""
    return {"x": np.random.default_rng(number).random((rows, 4), np.float32)}


def right(inputs: dict[str, np.ndarray], outputs: dict[str, np.ndarray]) -> bool:
    """Whether these are the outputs of exactly these rows."""
    return np.allclose(outputs["y"], inputs["x"] @ WEIGHTS, rtol=1e-5)


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_64_threads_get_their_own_rows_from_8_requests(server: EmbeddedServer, protocol: Protocol) -> None:
    """One row each from 64 threads reaches the server as eight requests of eight rows, and no row goes astray."""
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Client(url, protocol=protocol) as client:
        before = client.settled_statistics("linear")
        with MicroBatcher(client, "linear", max_rows=8, max_delay_s=NEVER_S) as batcher:
            inputs = [rows_for(number) for number in range(64)]
            futures = side_by_side([lambda each=each: batcher.infer(each) for each in inputs])
        after = client.settled_statistics("linear")
    assert all(right(each, future.result()) for each, future in zip(inputs, futures, strict=True))
    assert after.inference_stats.success.count - before.inference_stats.success.count == 8
    assert after.inference_count - before.inference_count == 64


@pytest.mark.triton
def test_calls_of_different_sizes_share_requests_over_and_over(server: EmbeddedServer) -> None:
    """Thirty-two threads that call ten times with 1 to 5 rows need fewer requests than calls, all answered right."""

    def calls(batcher: MicroBatcher, thread: int) -> bool:
        every = [rows_for(100 * thread + number, 1 + (thread + number) % 5) for number in range(10)]
        return all(right(inputs, batcher.infer(inputs)) for inputs in every)

    with Client(server.http_url) as client:
        before = client.settled_statistics("linear")
        with MicroBatcher(client, "linear", max_rows=8, max_delay_s=0.02) as batcher:
            futures = side_by_side([lambda thread=thread: calls(batcher, thread) for thread in range(32)])
        after = client.settled_statistics("linear")
    assert all(future.result() for future in futures)
    assert after.inference_stats.success.count - before.inference_stats.success.count < 320
    assert after.inference_count - before.inference_count == sum(1 + (a + b) % 5 for a in range(32) for b in range(10))


@pytest.mark.triton
def test_only_the_guilty_one_of_a_batch_fails(server: EmbeddedServer) -> None:
    """An index that the model rejects fails its own caller with ServerError; the seven others get their values."""
    with Client(server.http_url) as client, MicroBatcher(client, "gather", max_rows=8, max_delay_s=NEVER_S) as batcher:
        indices = [0, 1, 2, 99, 4, 5, 6, 7]
        futures = side_by_side(
            [lambda index=index: batcher.infer({"index": np.array([[index]], np.int64)}) for index in indices]
        )
    assert isinstance(futures[3].exception(), ServerError)
    assert "out of data bounds" in str(futures[3].exception())
    values = [future.result()["value"].item() for future in futures if future is not futures[3]]
    assert values == [0, 1, 2, 4, 5, 6, 7]


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_200_tasks_get_their_own_rows_from_25_requests(server: EmbeddedServer, protocol: Protocol) -> None:
    """One row each from 200 tasks reaches the server as 25 requests of eight rows, and no row goes astray."""
    inputs = [rows_for(number) for number in range(200)]

    async def main() -> tuple[list[dict[str, np.ndarray]], int]:
        url = server.grpc_url if protocol == "grpc" else server.http_url
        async with AsyncClient(url, protocol=protocol) as client:
            before = await client.settled_statistics("linear")
            async with AsyncMicroBatcher(client, "linear", max_rows=8, max_delay_s=NEVER_S) as batcher:
                answers = await asyncio.gather(*map(batcher.infer, inputs))
            after = await client.settled_statistics("linear")
        return answers, after.inference_stats.success.count - before.inference_stats.success.count

    answers, requests = asyncio.run(asyncio.wait_for(main(), 120))
    assert all(right(each, answer) for each, answer in zip(inputs, answers, strict=True))
    assert requests == 25


@pytest.mark.triton
def test_in_asyncio_only_the_guilty_one_of_a_batch_fails(server: EmbeddedServer) -> None:
    """As with threads: one ServerError, three values."""

    async def main() -> list[Any]:
        async with (
            AsyncClient(server.http_url) as client,
            AsyncMicroBatcher(client, "gather", max_rows=4, max_delay_s=NEVER_S) as batcher,
        ):
            calls = [batcher.infer({"index": np.array([[index]], np.int64)}) for index in (3, 99, 5, 6)]
            return await asyncio.gather(*calls, return_exceptions=True)

    first, guilty, *others = asyncio.run(asyncio.wait_for(main(), 60))
    assert isinstance(guilty, ServerError)
    assert [each["value"].item() for each in (first, *others)] == [3, 5, 6]


GREENLETS = """
from gevent import monkey; monkey.patch_all()
import sys
import gevent
import numpy as np
from tritonbatch.client import Client
from tritonbatch.client.micro_batcher import MicroBatcher

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)

def call(batcher, number):
    x = np.full((1, 4), number, np.float32)
    return np.array_equal(batcher.infer({"x": x})["y"], x @ WEIGHTS)

def counted(client):
    return client.settled_statistics("linear").inference_stats.success.count

with Client(sys.argv[1]) as client:
    with MicroBatcher(client, "linear", max_rows=8, max_delay_s=600) as batcher:
        before = counted(client)
        jobs = [gevent.spawn(call, batcher, number) for number in range(48)]
        gevent.joinall(jobs, timeout=60, raise_error=True)
        print(sum(job.get(block=False) for job in jobs), counted(client) - before)

        leader, follower, *others = [gevent.spawn(call, batcher, number) for number in range(3)]
        gevent.sleep(0)
        leader.kill()
        follower.kill()
        others += [gevent.spawn(call, batcher, number) for number in range(7)]
        gevent.joinall(others, timeout=60, raise_error=True)
        print(sum(job.get(block=False) for job in others), counted(client) - before)

    with MicroBatcher(client, "linear", max_rows=8, max_delay_s=0.05) as batcher:
        leader, *others = [gevent.spawn(call, batcher, number) for number in range(3)]
        gevent.sleep(0)
        leader.kill()
        gevent.joinall(others, timeout=60, raise_error=True)
        print(sum(job.get(block=False) for job in others), counted(client) - before)
"""


@pytest.mark.triton
def test_under_gevent_greenlets_share_requests_and_a_killed_leader_strands_nobody(server: EmbeddedServer) -> None:
    """48 greenlets make 6 requests; where the leader and a follower are killed while waiting, the others go on."""
    ran = subprocess.run(
        [sys.executable, "-c", GREENLETS, server.http_url], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.split("\n")[:-1] == ["48 6", "8 7", "2 8"]
