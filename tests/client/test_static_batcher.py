"""Fixed batches: the arithmetic of the plan, the padding, and every row's own answer from the real server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelMetadataResponse

from tritonbatch.client import AsyncClient, Client, InvalidRequest, ServerError
from tritonbatch.client.fixed_batches import Plan, batches_of, planned
from tritonbatch.client.static_batcher import AsyncStaticBatcher, StaticBatcher
from tritonbatch.errors import InvalidInput
from tritonbatch.server import EmbeddedServer

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.mark.parametrize(
    ("rows", "batch_size", "batches", "padding", "total_s"),
    [(1, 8, 1, 7, 0.02), (8, 8, 1, 0, 0.02), (9, 8, 2, 7, 0.04), (100, 1, 100, 0, 2.0), (7, 3, 3, 2, 0.06)],
)
def test_the_plan_is_batches_times_the_time_of_one(
    rows: int, batch_size: int, batches: int, padding: int, total_s: float
) -> None:
    """⌈N/B⌉ batches of 20 ms each, the last one filled up."""
    assert planned(rows, batch_size, 20.0) == Plan(
        rows=rows,
        batch_size=batch_size,
        batches=batches,
        padding=padding,
        batch_ms=20.0,
        total_s=pytest.approx(total_s),
    )


@given(rows=st.integers(1, 40), batch_size=st.integers(1, 12))
def test_batches_are_full_and_hold_every_row_once(rows: int, batch_size: int) -> None:
    """Every batch has exactly the size, its real rows are the data in order, and its padding repeats the last row."""
    arrays = {"a": np.arange(rows), "b": np.arange(2 * rows).reshape(rows, 2)}
    batches = list(batches_of(arrays, rows, batch_size))
    plan = planned(rows, batch_size, 1)
    assert len(batches) == plan.batches
    assert sum(batch.padding for batch in batches) == plan.padding
    for name, array in arrays.items():
        assert all(len(batch.inputs[name]) == batch_size for batch in batches)
        np.testing.assert_array_equal(np.concatenate([batch.inputs[name][: batch.rows] for batch in batches]), array)
        assert all((batch.inputs[name][batch.rows :] == array[-1]).all() for batch in batches)
    assert [batch.first for batch in batches] == list(range(0, rows, batch_size))


class Doubling:
    """A model y = 2 x of up to *max_batch_size* rows of any length that keeps what it was sent."""

    def __init__(self, max_batch_size: int = 4, answered_rows: int | None = None) -> None:
        self.sent: list[np.ndarray] = []
        self._max_batch_size = max_batch_size
        self._answered_rows = answered_rows

    def infer(self, model: str, inputs: Any, /) -> dict[str, np.ndarray]:  # noqa: ARG002 - there is but one model
        """Answer all rows, or only so many."""
        self.sent.append(inputs["x"])
        return {"y": 2 * inputs["x"][: self._answered_rows]}

    def metadata(self, model: str, /) -> ModelMetadataResponse:
        """One input x and one output y, FP32, of shape [batch, any]."""
        tensor = {"datatype": "FP32", "shape": [-1, -1]}
        return ModelMetadataResponse(name=model, inputs=[{"name": "x", **tensor}], outputs=[{"name": "y", **tensor}])

    def config(self, model: str, /) -> ModelConfig:
        """Nothing but the limit."""
        return ModelConfig(name=model, max_batch_size=self._max_batch_size)


def test_the_time_of_a_batch_is_measured_once_on_the_first_rows() -> None:
    """Seven executions of a full batch of the data's first rows, repeated, come before the first plan, and no more."""
    client = Doubling()
    batcher = StaticBatcher(client, "double", 4)
    plan = batcher.plan({"x": np.array([[1], [2], [3]], np.float32)})
    assert [x.ravel().tolist() for x in client.sent] == [[1, 2, 3, 1]] * 7
    assert (plan.rows, plan.batches, plan.padding) == (3, 1, 1)
    assert plan.total_s == plan.batch_ms / 1000
    million = batcher.plan({"x": [[5.0]]}, rows=1_000_000)
    assert (million.batches, million.batch_ms) == (250_000, plan.batch_ms)
    assert len(client.sent) == 7
    with pytest.raises(InvalidInput, match="rows is 0"):
        batcher.plan({"x": [[5.0]]}, rows=0)


def test_a_run_logs_its_plan_before_it_starts(caplog: pytest.LogCaptureFixture) -> None:
    """The log has the plan as a sentence, and the batches go out full, one after another."""
    client = Doubling()
    with caplog.at_level(logging.INFO, "tritonbatch.client.static_batcher"):
        outputs = StaticBatcher(client, "double", 4).run({"x": [[float(row)] for row in range(6)]})
    assert outputs["y"].ravel().tolist() == [0, 2, 4, 6, 8, 10]
    assert [x.ravel().tolist() for x in client.sent[7:]] == [[0, 1, 2, 3], [4, 5, 5, 5]]
    assert "Model double: 6 rows in 2 batches of 4 (2 rows of padding)" in caplog.text


def test_a_stream_is_lazy_and_holds_one_batch() -> None:
    """No item is taken before it is asked for, and never more than a batch ahead of what was given out."""
    taken: list[int] = []

    def items() -> Iterator[dict[str, Any]]:
        for number in range(10):
            taken.append(number)
            yield {"x": [float(number)]}

    client = Doubling()
    outputs = StaticBatcher(client, "double", 4).stream(items())
    assert not taken
    assert next(outputs)["y"].tolist() == [0]
    assert len(taken) == 4
    assert [each["y"].tolist() for each in outputs] == [[2.0 * number] for number in range(1, 10)]
    assert [x.ravel().tolist() for x in client.sent] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 9, 9]]
    assert list(StaticBatcher(client, "double", 4).stream([])) == []


def test_a_stream_refuses_an_item_of_another_shape_in_a_batch() -> None:
    """The message names the item and both shapes; what is before its batch was answered."""
    items = [{"x": [1.0]}, {"x": [2.0]}, {"x": [3.0]}, {"x": [4.0, 5.0]}]
    outputs = StaticBatcher(Doubling(), "double", 2).stream(items)
    assert [next(outputs)["y"].tolist() for _ in range(2)] == [[2], [4]]
    with pytest.raises(InvalidRequest, match=r"^Item 3: Model double: got x float32\[2\]; expected x float32\[1\]"):
        next(outputs)


@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({"x": np.ones((0, 2), np.float32)}, "got no rows; expected 1 or more"),
        ({"x": []}, "got no rows"),
        ({}, "got the inputs none; expected x"),
        ({"x": np.ones((9, 2), np.float64)}, "input x: got float64 .FP64.; expected FP32"),
        ({"x": np.ones(9, np.float32)}, r"input x: got shape \(9,\)"),
    ],
)
def test_inputs_that_cannot_be_are_refused_before_anything_is_sent(inputs: dict[str, Any], says: str) -> None:
    """No rows, wrong names, types and shapes are said at once, also by the plan."""
    client = Doubling()
    batcher = StaticBatcher(client, "double", 4)
    for method in (batcher.run, batcher.plan):
        with pytest.raises(InvalidRequest, match=says):
            method(inputs)
    assert not client.sent


@pytest.mark.parametrize(
    ("max_batch_size", "batch_size", "says"),
    [
        (4, 5, "batch_size is 5: model double takes 1 to 4 rows"),
        (4, 0, "batch_size is 0"),
        (0, 1, "max_batch_size 0: expected a model with a batch axis"),
    ],
)
def test_a_batch_size_that_the_model_does_not_take_is_refused(max_batch_size: int, batch_size: int, says: str) -> None:
    """The message has the number, the model and its limit; the asyncio twin says the same at its first call."""
    client = Doubling(max_batch_size)
    with pytest.raises(InvalidInput, match=says):
        StaticBatcher(client, "double", batch_size)


def test_an_output_without_the_rows_of_its_batch_is_refused() -> None:
    """A model that answers fewer rows than it was sent is a ServerError, not a shorter result."""
    with pytest.raises(ServerError, match=r"output y: got shape \(1, 1\) for a batch of 4"):
        StaticBatcher(Doubling(answered_rows=1), "double", 4).run({"x": [[1.0], [2.0]]})


@pytest.mark.triton
@pytest.mark.parametrize(("rows", "batch_size"), [(1, 8), (16, 8), (21, 8), (5, 1)])
def test_every_row_gets_its_own_answer(server: EmbeddedServer, rows: int, batch_size: int) -> None:
    """Run and stream give x @ W row by row, and the server counts full batches only."""
    x = np.random.default_rng(rows).random((rows, 4), np.float32)
    with Client(server.http_url) as client:
        batcher = StaticBatcher(client, "linear", batch_size)
        plan = batcher.plan({"x": x})
        before = client.settled_statistics("linear")
        outputs = batcher.run({"x": x})
        after = client.settled_statistics("linear")
        streamed = [item["y"] for item in batcher.stream({"x": row} for row in x)]
    np.testing.assert_allclose(outputs["y"], x @ WEIGHTS, rtol=1e-6)
    np.testing.assert_array_equal(np.stack(streamed), outputs["y"])
    assert after.inference_stats.success.count - before.inference_stats.success.count == plan.batches
    assert after.inference_count - before.inference_count == plan.batches * batch_size


@pytest.mark.triton
def test_an_error_names_the_items_of_its_batch(server: EmbeddedServer) -> None:
    """When the model rejects a row, the error's note says in which batch it was; different row counts are refused."""
    index = np.array([[0], [1], [2], [3], [4], [99]], np.int64)
    with Client(server.http_url) as client:
        with pytest.raises(ServerError, match="out of data bounds") as caught:
            StaticBatcher(client, "gather", 4).run({"index": index})
        names = [f"in_{kind}" for kind in ("FP32", "INT8")]
        contract = client.contract("echo")
        uneven = {name: [[0, 0, 0]] * (2 if name in names else 3) for name in contract.inputs if name != "in_BOOL"}
        with pytest.raises(InvalidRequest, match="different numbers of rows"):
            StaticBatcher(client, "echo", 4).run({**uneven, "in_BOOL": np.zeros((3, 3), np.bool_)})
    assert caught.value.__notes__ == ["in the batch of items 4 to 5"]


@pytest.mark.triton
def test_asyncio_runs_the_same_batches(server: EmbeddedServer, caplog: pytest.LogCaptureFixture) -> None:
    """Plan, run and stream of the asyncio twin give what the blocking ones give, and the limit is kept."""
    x = np.random.default_rng(1).random((11, 4), np.float32)

    async def main() -> None:
        async with AsyncClient(server.http_url) as client:
            batcher = AsyncStaticBatcher(client, "linear", 4)
            plan = await batcher.plan({"x": x})
            assert (plan.batches, plan.padding) == (3, 1)
            np.testing.assert_allclose((await batcher.run({"x": x}))["y"], x @ WEIGHTS, rtol=1e-6)
            streamed = [item["y"] async for item in batcher.stream({"x": row} for row in x)]
            np.testing.assert_allclose(np.stack(streamed), x @ WEIGHTS, rtol=1e-6)
            with pytest.raises(InvalidInput, match="batch_size is 9"):
                await AsyncStaticBatcher(client, "linear", 9).run({"x": x})

    with caplog.at_level(logging.INFO, "tritonbatch.client.static_batcher"):
        asyncio.run(asyncio.wait_for(main(), 60))
    assert "11 rows in 3 batches of 4" in caplog.text
