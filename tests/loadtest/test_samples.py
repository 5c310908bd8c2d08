"""Rows from files, functions, or made up: what is read, how it is batched, and how mistakes are said."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tritonbatch.client import Client
from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.samples import POOL, _batched, load_items, load_samples, sample_batches
from tritonbatch.server import EmbeddedServer


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    """A client of the shared server."""
    with Client(server.http_url) as made:
        yield made


def lines(path: Path, *items: object) -> Path:
    """A .jsonl file with an item per line."""
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def one_sentence(error: pytest.ExceptionInfo[InvalidInput], *parts: str) -> None:
    """The error is one line that holds each of *parts*."""
    assert "\n" not in str(error.value)
    for part in parts:
        assert part in str(error.value)


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"x": [1, 2, 3, 4]}\n{"x": [1, 2', ("line 2", "at column", "a JSON object per line")),
        ('{"x": [1, 2, 3, 4]}\n\n[1, 2]\n', ("line 3", "expected a JSON object")),
        ("x\n", ("line 1", "Expecting value")),
        ("\n \n", ("are empty",)),
        ("", ("are empty",)),
    ],
)
def test_lines_that_are_no_items_are_named(tmp_path: Path, text: str, parts: tuple[str, ...]) -> None:
    """What is no JSON object is said with its line, empty ones counted."""
    path = tmp_path / "s.jsonl"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InvalidInput) as error:
        load_items(path)
    one_sentence(error, str(path), *parts)


def test_jsonl_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """A missing file, a folder, and bytes that are no UTF-8."""
    (tmp_path / "binary.jsonl").write_bytes(b"\xff\xfe{}")
    (tmp_path / "folder.jsonl").mkdir()
    for name in ("missing", "folder", "binary"):
        with pytest.raises(InvalidInput) as error:
            load_items(tmp_path / f"{name}.jsonl")
        one_sentence(error, "Cannot read the samples", name)


def test_lines_end_where_json_lines_end(tmp_path: Path) -> None:
    """Text may hold characters at which other formats end a line; lines keep their numbers; CRLF is fine."""
    path = tmp_path / "s.jsonl"
    path.write_bytes('{"t": "a\u2028b\u0085c"}\r\n\r\n{"t": "d"}'.encode())
    assert load_items(path) == {1: {"t": "a\u2028b\u0085c"}, 3: {"t": "d"}}


def test_items_of_one_shape_share_batches() -> None:
    """Batches hold whole rows of one shape, every shape has one, and a shape with too few items repeats them."""
    items = [{"x": np.full((1, size), number)} for number, size in enumerate([2, 3, 2, 3, 2, 3, 2, 5])]
    batches = _batched(items, 3)
    assert sorted(batch["x"].shape for batch in batches) == [(3, 2), (3, 3), (3, 5)]
    assert {batch["x"].shape[1]: batch["x"][:, 0].tolist() for batch in batches} == {
        2: [0, 2, 4],
        3: [1, 3, 5],
        5: [7, 7, 7],
    }


def test_optional_inputs_and_shapes_of_several_inputs_are_kept_apart() -> None:
    """Items with other inputs, or with another shape of any input, are not joined."""
    a, b = np.zeros((1, 2)), np.zeros((1, 3))
    batches = _batched([{"a": a}, {"a": a, "b": b}, {"b": b, "a": a}, {"a": a, "b": a}], 2)
    shapes = [sorted((name, array.shape) for name, array in batch.items()) for batch in batches]
    assert sorted(shapes) == [
        [("a", (2, 2))],
        [("a", (2, 2)), ("b", (2, 2))],
        [("a", (2, 2)), ("b", (2, 3))],
    ]


@pytest.mark.triton
def test_jsonl_items_become_batches_of_the_models_types(client: Client, tmp_path: Path) -> None:
    """Lists of numbers are sent in the declared type, with the batch axis added."""
    path = lines(tmp_path / "s.jsonl", *[{"x": [number, 1, 2, 3]} for number in range(5)])
    batches = sample_batches(client, "linear", 2, path)
    assert [batch["x"].dtype for batch in batches] == [np.float32] * 2
    assert [batch["x"][:, 0].tolist() for batch in batches] == [[0, 1], [2, 3]]
    for batch in batches:
        assert client.infer("linear", batch)["y"].shape == (2, 3)


@pytest.mark.triton
@pytest.mark.parametrize(
    ("item", "parts"),
    [
        ({"x": [1, 2, 3]}, ("line 2", "input x", "(3,)", "(4,)")),
        ({"x": ["a", "b", "c", "d"]}, ("line 2", "input x", "FP32")),
        ({"z": [1, 2, 3, 4]}, ("line 2", "z", "expected x")),
        ({}, ("line 2", "expected x")),
        ({"x": [[1], [1, 2]]}, ("line 2", "input x")),
        ({"x": None}, ("line 2", "input x")),
    ],
)
def test_an_item_that_does_not_fit_is_named_by_its_line(
    client: Client, tmp_path: Path, item: dict[str, Any], parts: tuple[str, ...]
) -> None:
    """A wrong shape, type or name in any line is said before anything is sent."""
    path = lines(tmp_path / "s.jsonl", {"x": [1, 2, 3, 4]}, item)
    with pytest.raises(InvalidInput) as error:
        sample_batches(client, "linear", 1, path)
    one_sentence(error, str(path), *parts)


@pytest.mark.triton
def test_npz_rows_are_taken_in_turn(client: Client, tmp_path: Path) -> None:
    """Batches take the rows in order, from the start again when there are fewer rows than a batch holds."""
    path = tmp_path / "s.npz"
    np.savez(path, x=np.arange(5, dtype=np.float32)[:, None] * np.ones((1, 4), np.float32))
    first = [batch["x"][:, 0].tolist() for batch in sample_batches(client, "linear", 2, path)]
    assert first == [[0, 1], [2, 3]]
    (wrapped,) = sample_batches(client, "linear", 8, path)
    assert wrapped["x"][:, 0].tolist() == [0, 1, 2, 3, 4, 0, 1, 2]


@pytest.mark.triton
def test_functions_and_metadata_make_as_many_rows_as_asked(client: Client) -> None:
    """A function gets a seeded generator and the rows; without one, values are made up from the metadata."""

    def make(rng: np.random.Generator, rows: int) -> Mapping[str, npt.ArrayLike]:
        return {"x": rng.random((rows, 4), np.float32)}

    for source in (make, None):
        batches = sample_batches(client, "linear", 4, source)
        again = sample_batches(client, "linear", 4, source)
        assert [batch["x"].shape for batch in batches] == [(4, 4)] * (POOL // 4)
        np.testing.assert_array_equal([batch["x"] for batch in batches], [batch["x"] for batch in again])
    assert len(sample_batches(client, "linear", POOL * 2, make)) == 1


def test_npz_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    """Junk, an empty file, a broken archive, an .npy, pickles, and arrays of different lengths: one sentence each."""
    paths = {name: tmp_path / f"{name}.npz" for name in ("junk", "empty", "broken", "array", "pickle", "odd", "none")}
    paths["junk"].write_bytes(b"junk")
    paths["empty"].write_bytes(b"")
    paths["broken"].write_bytes(b"PK\x03\x04 and no more")
    with paths["array"].open("wb") as file:
        np.save(file, np.zeros(3))
    np.savez(paths["pickle"], x=np.array([{}], object))
    np.savez(paths["odd"], x=np.zeros(3), y=np.zeros(2))
    np.savez(paths["none"])
    for path in [*paths.values(), tmp_path / "missing.npz", tmp_path]:
        with pytest.raises(InvalidInput, match=re.escape(str(path))) as error:
            load_samples(path)
        one_sentence(error)
