"""Every kind of input and output: the right results, in the input's order, with its ids."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tritonbatch.client import Client
from tritonbatch.offline import Server, plan, run
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

Floats = npt.NDArray[np.float32]
Batch = Callable[[Sequence[str], Path], tuple[int, str]]


def read(path: Path) -> tuple[list[Any], Floats]:
    """Ids and results of an output; an .npy has row numbers only."""
    if path.suffix == ".npy":
        y = np.load(path)
        return list(range(len(y))), y
    if path.suffix == ".jsonl":
        found = [json.loads(line) for line in path.read_text().splitlines()]
        return [each["id"] for each in found], np.array([each["y"] for each in found], np.float32)
    table = pq.read_table(path)
    return table["id"].to_pylist(), np.array(table["y"].to_pylist(), np.float32)


@pytest.fixture
def right(floats: Callable[[int], Floats], weights: Floats) -> Floats:
    """The results for `inputs`."""
    return floats(1300) @ weights


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("rows.npy", "y.npy"),
        ("rows.parquet", "y.parquet"),
        ("rows.jsonl", "y.jsonl"),
        ("npy_parts", "y.parquet"),
        ("parquet_parts", "y.jsonl"),
        ("jsonl_parts", "y.npy"),
    ],
)
def test_results_are_right_and_in_order(
    server: EmbeddedServer, inputs: Path, right: Floats, source: str, output: str
) -> None:
    """Three parts, the last batch of the job not full: each row has its own result and id, and nothing else is left."""
    where = Server((server.grpc_url,), "grpc")
    with where.client() as client:
        job, sample = plan(client, inputs / source, inputs / output, "linear", 8)
    summary = run(job, sample, where)
    assert (summary.rows, summary.errors) == (1300, 0)
    ids, y = read(inputs / output)
    named = "npy" not in source and output != "y.npy"
    assert ids == [f"item-{row}" if named else row for row in range(1300)]
    np.testing.assert_allclose(y, right, rtol=1e-5)
    assert [path.name for path in inputs.iterdir() if path.name.startswith("y.")] == [output]


def test_every_execution_has_the_full_batch(server: EmbeddedServer, inputs: Path) -> None:
    """1300 rows in batches of 8 are 163 executions of 8 rows each, the padding included, and a few to measure."""
    where = Server((server.http_url,))
    with Client(server.http_url) as client:
        job, sample = plan(client, inputs / "rows.npy", inputs / "y.npy", "linear", 8)
        before = client.settled_statistics("linear")
        run(job, sample, where)
        after = client.settled_statistics("linear")
    measured = 4
    assert after.inference_stats.success.count - before.inference_stats.success.count == 163 + measured
    assert after.inference_count - before.inference_count == (163 + measured) * 8


def test_scalars_and_all_numeric_types(server: EmbeddedServer, run_batch: Batch, tmp_path: Path) -> None:
    """A column of numbers feeds a tensor of one number each; each numeric type comes back as itself in Parquet."""
    pq.write_table(pa.table({"x": [1.5, 2.5, 3.5]}), tmp_path / "s.parquet")
    there = ["--url", server.http_url]
    assert run_batch(["s.parquet", "s.out.parquet", "--model", "scalar", "--batch", "2", *there], tmp_path)[0] == 0
    assert pq.read_table(tmp_path / "s.out.parquet").to_pydict() == {"id": [0, 1, 2], "y": [[3.0], [5.0], [7.0]]}
    with Client(server.http_url) as client:
        tensors = client.contract("echo").inputs
    types = {"BOOL": pa.bool_(), "FP16": pa.float16(), "FP32": pa.float32(), "FP64": pa.float64()}
    columns = {}
    for name, tensor in tensors.items():
        kind = types.get(tensor.datatype) or getattr(pa, tensor.datatype.lower())()
        values = np.array([[0, 1, 1], [1, 0, 1]]).astype(kind.to_pandas_dtype())
        columns[name] = pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1), kind), 3)
    pq.write_table(pa.table(columns), tmp_path / "e.parquet")
    assert run_batch(["e.parquet", "e.out.parquet", "--model", "echo", "--batch", "4", *there], tmp_path)[0] == 0
    out = pq.read_table(tmp_path / "e.out.parquet")
    for name, column in columns.items():
        assert out[name.replace("in_", "out_")].combine_chunks().type.value_type == column.type.value_type
        assert out[name.replace("in_", "out_")].to_pylist() == column.to_pylist()


def test_lines_hold_plain_json(server: EmbeddedServer, tmp_path: Path) -> None:
    """Numbers written as 1.0 feed integers; a result that is no number is null, as JSON has no NaN."""
    where = Server((server.http_url,))
    (tmp_path / "i.jsonl").write_text('{"index": [1.0]}\n{"index": 2.0}\n{"index": [3]}\n')
    np.save(tmp_path / "x.npy", np.array([[np.nan, 0, 0, 0], [np.inf, 0, 0, 0], [1, 0, 0, 0]], np.float32))
    with where.client() as client:
        for model, source, output in (("gather", "i.jsonl", "v.jsonl"), ("linear", "x.npy", "y.jsonl")):
            job, sample = plan(client, tmp_path / source, tmp_path / output, model, 2)
            assert run(job, sample, where).errors == 0
    assert [json.loads(line)["value"] for line in (tmp_path / "v.jsonl").read_text().splitlines()] == [[1], [2], [3]]
    text = (tmp_path / "y.jsonl").read_text()
    assert [json.loads(line)["y"] for line in text.splitlines()] == [[None] * 3, [None] * 3, [0, 1, 2]]
    assert "NaN" not in text
    assert "Infinity" not in text


def test_an_output_that_is_there_is_kept(server: EmbeddedServer, run_batch: Batch, inputs: Path) -> None:
    """What stood at the output's place stays beside it as .bak."""
    (inputs / "y.jsonl").write_text("mine\n")
    arguments = ["rows.npy", "y.jsonl", "--model", "linear", "--batch", "8", "--url", server.http_url]
    assert run_batch(arguments, inputs)[0] == 0
    assert (inputs / "y.jsonl.bak").read_text() == "mine\n"
    assert len((inputs / "y.jsonl").read_text().splitlines()) == 1300
