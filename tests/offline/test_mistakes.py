"""What a user can get wrong: exit code 2, one sentence that says what to do, and nothing written or sent."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tritonbatch.cli.main import main
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

Refused = Callable[[Sequence[str]], str]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with good and bad inputs in it."""
    x = np.zeros((3, 4), np.float32)
    np.save(tmp_path / "x.npy", x)
    np.save(tmp_path / "number.npy", np.float32(3))
    np.save(tmp_path / "none.npy", x[:0])
    (tmp_path / "empty.jsonl").touch()
    (tmp_path / "empty.npy").touch()
    (tmp_path / "x.csv").write_text("x\n1\n")
    (tmp_path / "broken.parquet").write_text("no Parquet")
    pq.write_table(pa.table({"id": [1], "features": [[1.0] * 4]}), tmp_path / "column.parquet")
    pq.write_table(pa.table({"id": [1.5], "x": [[1.0] * 4]}), tmp_path / "ids.parquet")
    (tmp_path / "ids.jsonl").write_text(json.dumps({"id": [1], "x": [1, 2, 3, 4]}))
    (tmp_path / "keys.jsonl").write_text(json.dumps({"features": [1, 2, 3, 4]}))
    (tmp_path / "e.jsonl").write_text("{}")
    (tmp_path / "null.jsonl").write_text(json.dumps({"x": None}))
    (tmp_path / "number.jsonl").write_text(json.dumps({"x": 5}))
    (tmp_path / "array.jsonl").write_text(json.dumps([{"x": [1, 2, 3, 4]}], indent=1))
    (tmp_path / "half.jsonl").write_text(json.dumps({"index": [1.5]}))
    (tmp_path / "large.jsonl").write_text(json.dumps({"index": [1e300]}))
    os.mkfifo(tmp_path / "pipe.jsonl")
    for name in ("x", "id", "other"):
        columns = [pa.array([[1.0] * 4]), pa.array([1]), pa.array([2]), pa.array([3]), pa.array([4])]
        table = pa.Table.from_arrays(columns, names=["x", "id", name, "more", "more"])
        pq.write_table(table, tmp_path / f"twice_{name}.parquet")
    for name in ("parts", "mixed", "nothing", "noted", "deep/er"):
        (tmp_path / name).mkdir(parents=True)
    np.save(tmp_path / "noted" / "0.npy", x)
    (tmp_path / "noted" / "readme.txt").touch()
    np.save(tmp_path / "parts" / "0.npy", x)
    np.save(tmp_path / "mixed" / "0.npy", x)
    (tmp_path / "mixed" / "1.jsonl").write_text(json.dumps({"x": [1, 2, 3, 4]}))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def refused(
    server: EmbeddedServer, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Refused]:
    """Give the arguments to the command: what it says on its way out with exit code 2, having written nothing."""
    monkeypatch.setenv("COLUMNS", "200")
    terminate = signal.getsignal(signal.SIGTERM)

    def refuse(arguments: Sequence[str]) -> str:
        before = sorted(folder.rglob("*"))
        given = ["--url", server.http_url, *([] if "--model" in arguments else ["--model", "linear", "--batch", "8"])]
        monkeypatch.setattr(sys, "argv", ["tritonbatch", "batch", *given, *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert sorted(folder.rglob("*")) == before
        return capsys.readouterr().err

    yield refuse
    signal.signal(signal.SIGTERM, terminate)


MISTAKES = {
    "no input": ("gone.npy y.npy", "No input at gone.npy: expected .parquet, .jsonl or .npy, or a folder of them"),
    "empty lines": ("empty.jsonl y.npy", "The input empty.jsonl has no rows"),
    "empty file": ("empty.npy y.npy", "empty.npy cannot be read as npy (No data left in file"),
    "no rows": ("none.npy y.npy", "The input none.npy has no rows"),
    "one number": ("number.npy y.npy", "it is a single number, not an array with rows"),
    "broken": ("broken.parquet y.npy", "broken.parquet cannot be read as parquet"),
    "kind of input": ("x.csv y.npy", "The input x.csv ends in .csv: expected .parquet, .jsonl or .npy"),
    "kind of output": ("x.npy y.csv", "The output y.csv ends in .csv: expected .parquet, .jsonl or .npy"),
    "empty folder": ("nothing y.npy", "The folder nothing holds no file: expected part files of one kind"),
    "mixed folder": ("mixed y.npy", "The folder mixed holds jsonl and npy: expected part files of one kind"),
    "a note beside the parts": (
        "noted y.npy",
        "The input noted/readme.txt ends in .txt: expected .parquet, .jsonl or .npy; convert or rename it, or move",
    ),
    "only subfolders": ("deep y.npy", "The folder deep holds no file: expected part files of one kind; subfolders are"),
    "a pipe": ("pipe.jsonl y.npy", "The input pipe.jsonl is a pipe or a device: expected a file"),
    "a column twice": ("twice_x.parquet y.npy", "twice_x.parquet has 2 columns named x: expected one"),
    "ids twice": ("twice_id.parquet y.npy", "twice_id.parquet has 2 columns named id: expected one"),
    "no column": ("column.parquet y.npy", "column.parquet has the columns id, features: expected x too"),
    "ids": ("ids.parquet y.jsonl", "The column id is double: expected integers or text"),
    "ids in lines": ("ids.jsonl y.jsonl", "The first id is [1]: expected an integer or text"),
    "no such key": (
        "keys.jsonl y.jsonl",
        "None of the first 1 items of keys.jsonl fits model linear; keys.jsonl, line 1",
    ),
    "null": ("null.jsonl y.jsonl", "null.jsonl, line 1: Model linear, input x: it is null; expected a value"),
    "one number for many": ("number.jsonl y.jsonl", "input x: got a single value; expected dims [4]."),
    "an array over many lines": (
        "array.jsonl y.jsonl",
        "array.jsonl, line 1: it is not JSON (Expecting value at character 2); expected one object a line",
    ),
    "no whole number": (
        "half.jsonl y.jsonl --model gather --batch 8",
        "Model gather, input index: got 1.5; expected whole numbers that INT64 holds",
    ),
    "a huge number": ("large.jsonl y.jsonl --model gather --batch 8", "got 1e+300; expected whole numbers that INT64"),
    "many inputs": ("x.npy y.jsonl --model echo --batch 8", "and an .npy holds one: expected columns of these names"),
    "many outputs": ("e.jsonl e.npy --model echo --batch 8", "expected one output of numbers with fixed dims"),
    "large batch": ("x.npy y.npy --model linear --batch 9", "The batch is 9: expected 1 to 8, the max_batch_size of"),
    "no batch": ("x.npy y.npy --model linear --batch 0", "The batch is 0: expected 1 to 8, the max_batch_size of"),
    "no model": ("x.npy y.npy --model lineal --batch 8", "lineal"),
    "wrong model": ("x.npy y.npy --model gather --batch 8", "None of the first 3 items of x.npy fits model gather"),
    "over the input": ("x.npy x.npy", "The output x.npy is in the input x.npy: name another place for it"),
    "in the input": ("parts parts/y.npy", "The output parts/y.npy is in the input parts: name another place for it"),
    "output is a folder": ("x.npy parts", "The output parts ends in no suffix"),
    "no folder": ("x.npy gone/y.npy", "There is no folder gone for the output: make it, or name another place"),
    "protocol": ("x.npy y.npy --protocol ftp", "The protocol is 'ftp': expected http or grpc"),
    "engine": ("x.npy y.npy --engine dask", "The engine is 'dask': expected local or ray"),
    "in flight": ("x.npy y.npy --in-flight 0", "--in-flight is 0: expected 1 or more"),
    "patience": ("x.npy y.npy --patience-s 0", "--patience-s is 0: expected seconds, more than 0"),
    "address": ("x.npy y.npy --url http://localhost:8000", "localhost:8000"),
    "no server": ("x.npy y.npy --model linear --url localhost:9", "Nothing answers at"),
}


@pytest.mark.parametrize(("arguments", "says"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_is_one_sentence(refused: Refused, arguments: str, says: str) -> None:
    """The sentence names what was given and what was expected; there is no traceback."""
    said = refused(arguments.split())
    assert said.startswith("error: ")
    assert says in said
    assert "Traceback" not in said
    assert len(said.strip().splitlines()) == 1
