"""More items than one request holds: split, in order, bounded, within one deadline; with each kind of client."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tritonbatch.client import (
    InvalidRequest,
    Options,
    Retry,
    ServerError,
    TimedOut,
)
from tritonbatch.errors import InvalidInput

pytestmark = pytest.mark.triton


@pytest.fixture
def client(connect: Callable[..., Any]) -> Any:
    """One client that sends everything once, of each of the four kinds."""
    return connect(retry=None)


class Watched:
    """Stands before a client's transport and notes how many exchanges there were, and how many at once at most."""

    def __init__(self, client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent = self.at_once = self.most = 0
        self._lock = threading.Lock()
        self._exchange = client._core.transport.exchange
        monkeypatch.setattr(client._core.transport, "exchange", self.exchange)

    async def exchange(self, address: str, call: Any, timeout_s: float) -> Any:
        """Pass the exchange on, counted."""
        with self._lock:
            self.sent += 1
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            return await self._exchange(address, call, timeout_s)
        finally:
            with self._lock:
                self.at_once -= 1


@pytest.mark.parametrize(("rows", "requests"), [(1, 1), (7, 1), (8, 1), (9, 2), (16, 2), (100, 13)])
@pytest.mark.parametrize("form", ["rows", "items"])
def test_any_number_of_items_comes_back_in_order(
    client: Any, monkeypatch: pytest.MonkeyPatch, rows: int, requests: int, form: str
) -> None:
    """Both forms give each item its own answer, with as few requests as max_batch_size allows."""
    x = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    client.contract("free")
    watched = Watched(client, monkeypatch)
    if form == "rows":
        got = client.infer_many("free", {"x": x}, in_flight=3)["y"]
    else:
        got = np.stack([each["y"] for each in client.infer_many("free", [{"x": row} for row in x], in_flight=3)])
    assert got.tolist() == x.sum(axis=1, keepdims=True).tolist()
    assert watched.sent == requests
    assert watched.most <= 3


def test_no_items_are_no_requests(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """No items give no results; arrays without rows are refused, since no shape could be given back."""
    client.contract("free")
    watched = Watched(client, monkeypatch)
    assert client.infer_many("free", []) == []
    with pytest.raises(InvalidRequest, match=r"got rows {'x': 0}; expected the same number, 1 or more"):
        client.infer_many("free", {"x": np.empty((0, 2), np.float32)})
    assert watched.sent == 0


def test_items_of_different_shapes_keep_their_order(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neighbours of one shape go together, and every item gets its own answer in its own place."""
    sizes = [1, 1, 1, 4, 4, 2, 1, *[3] * 10]
    items = [{"x": np.full(size, number, np.float32)} for number, size in enumerate(sizes)]
    client.contract("free")
    watched = Watched(client, monkeypatch)
    got = [each["y"].item() for each in client.infer_many("free", items)]
    assert got == [number * size for number, size in enumerate(sizes)]
    assert watched.sent == 6


def test_optional_inputs_may_differ_between_items(client: Any) -> None:
    """Items with and without the optional input are sent apart."""
    a, b = np.ones(2, np.float32), np.full(2, 5, np.float32)
    items = [{"a": a}, {"b": b, "a": a}, {"a": a, "b": b}, {"a": a}]
    assert [each["y"].tolist() for each in client.infer_many("optional", items)] == [[1, 1], [6, 6], [6, 6], [1, 1]]


def test_texts_and_literals_are_split_as_arrays_are(client: Any) -> None:
    """Lists take the declared type in both forms, as they do in infer."""
    texts = [[f"text {number}"] for number in range(20)]
    expected = [[text.encode()] for (text,) in texts]
    assert client.infer_many("text", {"x": texts})["x"].tolist() == expected
    assert [each["x"].tolist() for each in client.infer_many("text", [{"x": text} for text in texts])] == expected
    assert client.infer_many("free", {"x": [[0.5, 1.0]] * 20})["y"].tolist() == [[1.5]] * 20
    assert client.infer_many("half", {"x": [[0.5]] * 20})["y"].tolist() == [[0.5]] * 20


@pytest.mark.parametrize("in_flight", [1, 2])
def test_no_more_requests_than_asked_for_are_under_way(
    client: Any, monkeypatch: pytest.MonkeyPatch, in_flight: int
) -> None:
    """The number of requests at once reaches in_flight and never exceeds it."""
    client.contract("sleeper")
    watched = Watched(client, monkeypatch)
    client.infer_many("sleeper", {"x": np.full((4, 1), 0.03, np.float32)}, in_flight=in_flight)
    assert (watched.sent, watched.most) == (4, in_flight)


def test_in_flight_must_be_a_number_of_requests(client: Any) -> None:
    """Zero requests at once would never end, and are refused."""
    with pytest.raises(InvalidInput, match="in_flight is 0: expected"):
        client.infer_many("free", {"x": np.ones((1, 1), np.float32)}, in_flight=0)


@pytest.mark.parametrize("form", ["rows", "items"])
def test_an_error_names_the_items_it_came_from(client: Any, form: str) -> None:
    """One bad item of twenty fails the call, with the request's items in a note; the client goes on."""
    x = np.zeros((20, 1), np.float32)
    x[10] = 99
    with pytest.raises(ServerError, match="x is over 9") as caught:
        client.infer_many("failing", {"x": x} if form == "rows" else [{"x": row} for row in x])
    assert caught.value.__notes__ == ["in the request of items 8 to 15"]
    assert client.infer_many("failing", {"x": x[:10]})["y"].tolist() == x[:10].tolist()


def test_an_item_that_cannot_be_right_is_named(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of the wrong type stops everything before anything is sent, and the sentence says which one it is."""
    client.contract("free")
    watched = Watched(client, monkeypatch)
    items = [{"x": np.ones(2, np.float32)}] * 9 + [{"x": np.ones(2, np.float64)}]
    with pytest.raises(InvalidRequest, match=r"^Item 9: Model free, input x: got float64"):
        client.infer_many("free", items)
    assert watched.sent == 0


def test_after_a_failure_no_further_requests_are_sent(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of many requests fails, and the others never leave."""
    client.contract("failing")
    watched = Watched(client, monkeypatch)
    with pytest.raises(ServerError):
        client.infer_many("failing", {"x": np.full((8 * 50, 1), 99, np.float32)}, in_flight=1)
    assert watched.sent == 1


def test_one_deadline_is_for_all_requests_together(client: Any) -> None:
    """Each item alone would be in time, all of them one after another are not."""
    x = np.full((20, 1), 0.05, np.float32)
    with pytest.raises(TimedOut) as caught:
        client.infer_many("sleeper", {"x": x}, in_flight=1, timeout_s=0.3)
    assert caught.value.__notes__[0].startswith("in the request of items ")
    assert client.infer_many("free", {"x": x})["y"].shape == (20, 1)


def test_a_model_without_a_batch_axis_is_not_split(client: Any) -> None:
    """max_batch_size 0 leaves nothing to split along, in both forms."""
    for items in ({"x": np.ones((2, 3), np.float32)}, [{"x": np.ones((2, 3), np.float32)}]):
        with pytest.raises(InvalidRequest, match=r"nobatch has max_batch_size 0.*use infer"):
            client.infer_many("nobatch", items)


def test_iterators_of_items_work(client: Any) -> None:
    """Items may come from a generator, which is read once."""
    got = client.infer_many("free", ({"x": np.full(1, number, np.float32)} for number in range(20)))
    assert [each["y"].item() for each in got] == list(range(20))


@pytest.mark.parametrize(
    ("items", "says"),
    [
        (np.ones((3, 1), np.float32), "got ndarray as items; expected a sequence of mappings"),
        (None, "got NoneType as items; expected a sequence of mappings"),
        ("text", "got str as items; expected a sequence of mappings"),
        ([np.ones(1, np.float32)], "got ndarray as inputs; expected a mapping"),
        ({"x": (value for value in (1.0, 2.0))}, "input x: got object .*; expected FP32"),
        ({"x": [[1.0], [1.0, 2.0]]}, "input x: the lists have different lengths"),
        ({"x": np.float32(1)}, r"input x: got shape \(\); expected \(-1, -1\)"),
        ({"x": np.ones(3, np.float32)}, r"got shape \(3,\); expected .*The items are on axis 0"),
        ({"x": np.ones((0, 1), np.float32)}, "got rows {'x': 0}; expected"),
        ({"z": np.ones((3, 1), np.float32)}, "got the inputs z; expected x"),
        ({}, "got the inputs none; expected x"),
    ],
)
def test_items_that_are_none_are_refused_with_a_sentence(client: Any, items: Any, says: str) -> None:
    """Arrays without names, generators as arrays, ragged lists and wrong names are said, not stumbled over."""
    with pytest.raises(InvalidRequest, match=says):
        client.infer_many("free", items)


def test_inputs_of_different_lengths_are_refused(client: Any) -> None:
    """All inputs have the same number of rows."""
    inputs = {"a": np.ones((20, 2), np.float32), "b": np.ones((19, 2), np.float32)}
    with pytest.raises(InvalidRequest, match=r"got rows {'a': 20, 'b': 19}"):
        client.infer_many("optional", inputs)


def test_options_and_retries_apply_to_every_part(connect: Callable[..., Any]) -> None:
    """Each request has the options; split requests that are hedged too have threads enough."""
    client = connect(retry=Retry(hedge_after_s=0.0001))
    x = np.arange(40, dtype=np.float32)[:, None]
    got = client.infer_many("free", {"x": x}, in_flight=4, options=Options(outputs=("y",), version="1"))
    assert got["y"].tolist() == x.tolist()
    with pytest.raises(InvalidRequest, match="has no output z"):
        client.infer_many("free", {"x": x}, options=Options(outputs=("z",)))
