"""Items that cannot be computed: each is named in OUTPUT.errors.jsonl, and all the others have their results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tritonbatch.offline import Server, plan, run
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

Batch = Callable[[Sequence[str], Path], tuple[int, str]]
Lines = Callable[[Path], list[dict[str, Any]]]


def test_bad_lines_are_named_and_the_others_answered(
    server: EmbeddedServer,
    run_batch: Batch,
    lines: Lines,
    write_lines: Callable[[Path, Sequence[Any]], None],
    tmp_path: Path,
) -> None:
    """A broken line, wrong shapes and types, nulls and a missing id each have an entry with id, place and reason."""
    good = [{"id": row, "x": [row, 0, 0, 1]} for row in range(20)]
    bad = [
        '{"id": 100, "x": [1, 2',
        {"id": 101, "x": [1, 2, 3]},
        {"id": 102, "x": None},
        {"id": 103, "x": [1, 2, "three", 4]},
        {"id": 104, "x": [1, None, 3, 4]},
        {"id": "text", "x": [1, 2, 3, 4]},
        {"x": [1, 2, 3, 4]},
        [1, 2, 3, 4],
        {"id": 108, "x": [1, 1e300, 3, 4]},
        {"id": 109, "x": [[1, 2], [3]]},
        "",
    ]
    write_lines(tmp_path / "x.jsonl", [*good[:10], *bad, *good[10:]])
    arguments = ["x.jsonl", "y.jsonl", "--model", "linear", "--batch", "8", "--url", server.http_url]
    code, said = run_batch(arguments, tmp_path)
    assert code == 1
    assert "20 of 31 rows are in y.jsonl; 11 failed: see y.jsonl.errors.jsonl" in said
    results = lines(tmp_path / "y.jsonl")
    assert [each["id"] for each in results] == list(range(20))
    assert [each["y"] for each in results] == [[9.0, 10.0 + row, 11.0 + 2 * row] for row in range(20)]
    errors = lines(tmp_path / "y.jsonl.errors.jsonl")
    assert [each["row"] for each in errors] == list(range(10, 21))
    assert [each["id"] for each in errors] == [None, 101, 102, 103, 104, None, None, None, 108, 109, None]
    assert [each["where"] for each in errors] == [f"x.jsonl, line {line}" for line in range(11, 22)]
    parts = [
        "not JSON (Expecting ',' delimiter at character 23); expected one object a line",
        "input x: got dims [3]; expected dims [4].",
        "input x: it is null",
        "input x",
        "input x",
        "its id is 'text'",
        "its id is None",
        "it is list; expected one object a line",
        "holds",
        "different lengths",
        "it is blank",
    ]
    for error, part in zip(errors, parts, strict=True):
        assert part in error["error"], error


def test_bad_cells_are_named_and_the_others_answered(
    server: EmbeddedServer, run_batch: Batch, lines: Lines, tmp_path: Path
) -> None:
    """In Parquet: a null list, a null in a list, a list too short."""
    rows = [[1.0, 2, 3, 4], None, [1, None, 3, 4], [1, 2, 3], [4, 3, 2, 1]]
    pq.write_table(pa.table({"id": list("abcde"), "x": rows}), tmp_path / "x.parquet")
    arguments = ["x.parquet", "y.parquet", "--model", "linear", "--batch", "2", "--url", server.http_url]
    assert run_batch(arguments, tmp_path)[0] == 1
    assert pq.read_table(tmp_path / "y.parquet").to_pydict() == {
        "id": ["a", "e"],
        "y": [[60.0, 70.0, 80.0], [30.0, 40.0, 50.0]],
    }
    errors = lines(tmp_path / "y.parquet.errors.jsonl")
    assert [(each["id"], each["row"], each["where"]) for each in errors] == [
        ("b", 1, "x.parquet, row 1"),
        ("c", 2, "x.parquet, row 2"),
        ("d", 3, "x.parquet, row 3"),
    ]


X = [1, 0, 0, 0]


def in_this_process(server: EmbeddedServer, source: Path, output: Path) -> int:
    """The job with `linear`, without the command around it: how many items failed."""
    where = Server((server.http_url,))
    with where.client() as client:
        job, sample = plan(client, source, output, "linear", 8)
    return run(job, sample, where).errors


def test_ids_that_begin_late_are_never_mistaken_for_row_numbers(
    server: EmbeddedServer, lines: Lines, write_lines: Callable[[Path, Sequence[Any]], None], tmp_path: Path
) -> None:
    """The first id among the first items says what the ids are; items without one fail, and are given none."""
    write_lines(tmp_path / "x.jsonl", [{"id": None, "x": X}, {"x": X}, "{", {"id": 2, "x": X}, {"id": "a", "x": X}])
    assert in_this_process(server, tmp_path / "x.jsonl", tmp_path / "y.jsonl") == 4
    assert [each["id"] for each in lines(tmp_path / "y.jsonl")] == [2]
    errors = lines(tmp_path / "y.jsonl.errors.jsonl")
    assert [(each["id"], each["row"]) for each in errors] == [(None, 0), (None, 1), (None, 2), (None, 4)]
    parts = ["its id is None; expected a 64-bit integer", "its id is None", "not JSON", "its id is 'a'"]
    assert all(part in each["error"] for each, part in zip(errors, parts, strict=True))


def test_an_id_after_many_items_without_one_is_an_error(
    server: EmbeddedServer, lines: Lines, write_lines: Callable[[Path, Sequence[Any]], None], tmp_path: Path
) -> None:
    """Where the first hundred items have no ids the rows are numbered, and an item with an id of its own fails."""
    write_lines(tmp_path / "x.jsonl", [*({"x": X} for _ in range(110)), {"id": 3, "x": X}, {"id": None, "x": X}])
    assert in_this_process(server, tmp_path / "x.jsonl", tmp_path / "y.parquet") == 1
    assert pq.read_table(tmp_path / "y.parquet")["id"].to_pylist() == [*range(110), 111]
    (error,) = lines(tmp_path / "y.parquet.errors.jsonl")
    assert (error["id"], error["row"]) == (None, 110)
    assert "its id is 3; expected none as in the first items" in error["error"]


def test_an_item_that_the_server_fails_on_is_found_in_its_batch(
    server: EmbeddedServer, run_batch: Batch, lines: Lines, tmp_path: Path
) -> None:
    """Five indices out of bounds among 200 fail alone, with the server's reason; an .npy has NaN in their places."""
    index = np.arange(200).reshape(-1, 1) % 10
    poison = [0, 7, 8, 100, 199]
    index[poison] = 1000
    np.save(tmp_path / "i.npy", index)
    arguments = ["i.npy", "v.npy", "--model", "gather", "--batch", "8", "--url", server.grpc_url, "--protocol", "grpc"]
    code, said = run_batch(arguments, tmp_path)
    assert code == 1
    assert "195 of 200 rows are in v.npy; 5 failed" in said
    errors = lines(tmp_path / "v.npy.errors.jsonl")
    assert [each["id"] for each in errors] == poison
    assert all("out of data bounds" in each["error"] for each in errors)
    right = index.astype(np.float32)
    right[poison] = np.nan
    np.testing.assert_array_equal(np.load(tmp_path / "v.npy"), right)


def test_an_item_that_a_model_fails_on_is_found_in_its_batch(
    own_server: EmbeddedServer, run_batch: Batch, lines: Lines, tmp_path: Path
) -> None:
    """The exception of a Python model is the reason in the file of errors."""
    np.save(tmp_path / "x.npy", np.array([[1], [2], [10], [3]], np.float32))
    arguments = ["x.npy", "y.jsonl", "--model", "failing", "--batch", "4", "--url", own_server.http_url]
    assert run_batch(arguments, tmp_path)[0] == 1
    assert lines(tmp_path / "y.jsonl") == [{"id": id_, "y": [y]} for id_, y in ((0, 1.0), (1, 2.0), (3, 3.0))]
    (error,) = lines(tmp_path / "y.jsonl.errors.jsonl")
    assert (error["id"], error["where"]) == (2, "x.npy, row 2")
    assert "ValueError: x is over 9" in error["error"]


def test_an_item_that_a_model_dies_of_is_found_in_its_batch(
    own_server: EmbeddedServer, run_batch: Batch, lines: Lines, tmp_path: Path
) -> None:
    """The job loads the model anew, finds the item that its process dies of, and loses no other one."""
    np.save(tmp_path / "x.npy", np.array([[row % 7] for row in range(14)] + [[10]] + [[5]], np.float32))
    arguments = ["x.npy", "y.jsonl", "--model", "crash", "--batch", "2", "--url", own_server.http_url]
    code, said = run_batch(arguments, tmp_path)
    assert code == 1, said
    assert "waiting: The process of model crash died: loading it anew." in said
    assert [each["id"] for each in lines(tmp_path / "y.jsonl")] == [*range(14), 15]
    (error,) = lines(tmp_path / "y.jsonl.errors.jsonl")
    assert error["id"] == 14
    assert "Stub process" in error["error"]


def test_an_input_that_fits_nowhere_is_refused_as_a_whole(
    server: EmbeddedServer, run_batch: Batch, tmp_path: Path
) -> None:
    """When none of the first items fits, it is the input that is wrong: nothing is sent, and one reason is shown."""
    np.save(tmp_path / "x.npy", np.zeros((50, 5), np.float32))
    code, said = run_batch(["x.npy", "y.npy", "--model", "linear", "--batch", "8", "--url", server.http_url], tmp_path)
    assert code == 2
    assert "None of the first 50 items of x.npy fits model linear; x.npy, row 0: " in said
    assert [path.name for path in tmp_path.iterdir()] == ["x.npy"]
