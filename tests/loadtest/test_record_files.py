"""Records in several files: merging, reading piece by piece, and what is left by a process that was killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest import record_files
from tritonbatch.loadtest.record_files import COLUMNS
from tritonbatch.loadtest.record_writer import RecordWriter
from tritonbatch.loadtest.records import STATUSES, Records, iterate, read_records, write_records


def whole(count: int, seed: int = 0) -> Records:
    """Random but consistent records of a whole run, with ties in the intended start."""
    rng = np.random.default_rng(seed)
    records = Records("run", "model", "dynamic", np.sort(rng.integers(0, count, count)))
    records.sent_ns = records.intended_ns + rng.integers(0, 10**6, count)
    records.done_ns = records.sent_ns + rng.integers(1, 10**8, count)
    records.status = rng.integers(0, len(STATUSES), count).astype(np.uint8)
    records.worker = rng.integers(0, 4, count).astype(np.uint16)
    records.priority = rng.integers(0, 3, count).astype(np.uint8)
    records.rows = rng.integers(1, 9, count).astype(np.uint32)
    records.batch = records.rows * 2
    return records


def part(records: Records, rows: object) -> Records:
    """Some rows of *records*."""
    found = Records(records.run, records.model, records.variant, records.intended_ns[rows])  # type: ignore[index]
    for name in COLUMNS:
        setattr(found, name, getattr(records, name)[rows])
    return found


def assert_equal(found: Records, expected: Records) -> None:
    """Every column is the same, in type too."""
    assert (found.run, found.model, found.variant) == (expected.run, expected.model, expected.variant)
    for name in COLUMNS:
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))
        assert getattr(found, name).dtype == getattr(expected, name).dtype


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 300), st.integers(0, 1000))
def test_the_files_of_all_workers_make_the_whole_run(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int
) -> None:
    """Split by worker, also when one had nothing to send, the parts merge to what one file would hold."""
    folder = tmp_path_factory.mktemp("records")
    records = whole(count, seed)
    for worker in range(4):
        write_records(part(records, records.worker == worker), folder / f"records-{worker}.parquet")
    assert_equal(read_records(folder), records)


def test_one_file_is_sorted_too(tmp_path: Path) -> None:
    """Records in the order of their ends come back in the order of their intended starts."""
    records = whole(500)
    write_records(part(records, np.random.default_rng(1).permutation(500)), tmp_path / "records.parquet")
    assert_equal(read_records(tmp_path), records)
    assert_equal(read_records(tmp_path / "records.parquet"), records)


def test_dictionaries_of_any_order_mean_the_same(tmp_path: Path) -> None:
    """Statuses numbered otherwise, or written as plain text by other software, are the same statuses."""
    records = whole(400)
    path = tmp_path / "records.parquet"
    write_records(records, path)
    table = pq.read_table(path)
    texts = [table.column(name).cast(pa.string()) for name in ("run", "model", "variant", "status")]
    halves = [table.slice(0, 200), table.slice(200)]
    plain = [pa.table({**{name: half.column(name) for name in COLUMNS[:-1]}}) for half in halves]
    for index, half in enumerate(plain):
        for name, text in zip(("run", "model", "variant", "status"), texts, strict=True):
            column = text.slice(index * 200, 200)
            half = half.append_column(name, column if index else column.dictionary_encode())  # noqa: PLW2901
        pq.write_table(half, tmp_path / f"records-{index}.parquet")
    path.unlink()
    assert_equal(read_records(tmp_path), records)


def test_an_older_file_takes_the_defaults(tmp_path: Path) -> None:
    """Without worker, sequence and rows: worker 0, the row number, and one row each."""
    path = tmp_path / "records.parquet"
    write_records(whole(50), path)
    pq.write_table(pq.read_table(path).drop_columns(["worker", "sequence", "rows"]), path)
    read = read_records(path)
    assert (read.worker == 0).all()
    assert read.sequence.tolist() == list(range(50))
    assert (read.rows == 1).all()
    assert (read.worker.dtype, read.sequence.dtype, read.rows.dtype) == (np.uint16, np.int64, np.uint32)


def renamed(records: Records, **names: str) -> Records:
    """The same records under another run, model or variant."""
    for name, value in names.items():
        setattr(records, name, value)
    return records


@pytest.mark.parametrize("name", ["run", "model", "variant"])
def test_two_runs_in_one_folder_are_refused(tmp_path: Path, name: str) -> None:
    """Files of different runs, models or variants are named, both of them, and not merged."""
    write_records(whole(5), tmp_path / "records-0.parquet")
    write_records(renamed(whole(5), **{name: "another"}), tmp_path / "records-1.parquet")
    says = r"records-0\.parquet holds the run run/model/dynamic and records-1\.parquet .*another"
    with pytest.raises(InvalidInput, match=says):
        read_records(tmp_path)
    with pytest.raises(InvalidInput, match="expected the records of one run"):
        list(iterate(tmp_path, ["status"]))


def test_the_same_arrival_twice_is_refused(tmp_path: Path) -> None:
    """A merged file beside its parts would count every request twice."""
    for name in ("records.parquet", "records-0.parquet"):
        write_records(whole(20), tmp_path / name)
    with pytest.raises(InvalidInput, match="holds the arrival 0 twice"):
        read_records(tmp_path)


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def with_column(name: str, values: list[object]) -> Callable[[Path], None]:
    """A change that gives a file other cells in one column."""

    def change(path: Path) -> None:
        table = pq.read_table(path)
        pq.write_table(table.set_column(table.schema.names.index(name), name, pa.array(values)), path)

    return change


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (cut, "Cannot read records from"),
        (lambda path: path.write_bytes(b""), "Cannot read records from"),
        (lambda path: path.write_bytes(b"PAR1junkjunkPAR1"), "Cannot read records from"),
        (with_column("status", ["ok", "ok", "great"]), "the status 'great' is none of unfinished, ok"),
        (with_column("status", ["ok", "ok", None]), "the column status has empty cells"),
        (with_column("done_ns", [1, 2, None]), "the column done_ns has empty cells"),
        (with_column("done_ns", ["a", "b", "c"]), "Cannot read records from"),
        (with_column("done_ns", [1.5, 2.0, 3.0]), "Cannot read records from"),
        (with_column("worker", [1, 2, -1]), "Cannot read records from"),
        (with_column("model", ["a", "b", "b"]), "holds records of the models"),
    ],
)
def test_damaged_and_foreign_files_are_named(tmp_path: Path, change: Callable[[Path], None], says: str) -> None:
    """Whichever file of the folder is damaged, its name is in the message."""
    records = whole(6)
    write_records(part(records, slice(0, 3)), tmp_path / "records-0.parquet")
    write_records(part(records, slice(3, 6)), tmp_path / "records-1.parquet")
    change(tmp_path / "records-1.parquet")
    with pytest.raises(InvalidInput, match=says) as refusal:
        read_records(tmp_path)
    assert "records-1.parquet" in str(refusal.value)


def test_a_folder_without_records_says_what_is_expected(tmp_path: Path) -> None:
    """An empty folder, and a folder whose files hold nothing, are mistakes."""
    with pytest.raises(InvalidInput, match=r"holds no records: expected records\.parquet or records-\*\.parquet"):
        read_records(tmp_path)
    write_records(whole(0), tmp_path / "records.parquet")
    with pytest.raises(InvalidInput, match="holds no records; expected at least one request"):
        read_records(tmp_path)


def test_iterating_gives_every_value_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of the columns asked for, over several runs, no longer than the limit; unknown columns are refused."""
    monkeypatch.setattr(record_files, "CHUNK_ROWS", 64)
    one, other = whole(300), renamed(whole(100, 1), run="second")
    (tmp_path / "a").mkdir()
    write_records(part(one, slice(0, 200)), tmp_path / "a" / "records-0.parquet")
    write_records(part(one, slice(200, 300)), tmp_path / "a" / "records-1.parquet")
    write_records(other, tmp_path / "b.parquet")
    chunks = list(iterate([tmp_path / "a", tmp_path / "b.parquet"], ["done_ns", "status"]))
    assert {tuple(chunk) for chunk in chunks} == {("done_ns", "status")}
    assert max(len(chunk["status"]) for chunk in chunks) <= 64
    for name in ("done_ns", "status"):
        expected = np.concatenate([getattr(one, name), getattr(other, name)])
        np.testing.assert_array_equal(np.concatenate([chunk[name] for chunk in chunks]), expected)
    with pytest.raises(InvalidInput, match="no column of numbers 'latency': expected one of worker, sequence"):
        next(iterate(tmp_path / "b.parquet", ["latency"]))


def test_a_writer_leaves_one_parquet_file(tmp_path: Path) -> None:
    """What was appended in pieces is read as a whole, and only the finished file remains."""
    records = whole(1000)
    with RecordWriter(tmp_path / "records.parquet") as writer:
        for first in range(0, 1000, 300):
            writer.append(part(records, slice(first, first + 300)))
        with pytest.raises(InvalidInput, match=r"records\.parquet\.partial is of a run that did not end"):
            read_records(tmp_path)
        assert_equal(read_records(tmp_path, partial=True), records)
    assert [path.name for path in tmp_path.iterdir()] == ["records.parquet"]
    assert_equal(read_records(tmp_path), records)


def test_a_failed_run_leaves_what_was_appended(tmp_path: Path) -> None:
    """When the block fails the partial file stays, hides no older result, and is read only when asked for."""
    path = tmp_path / "records.parquet"
    write_records(renamed(whole(9), run="old"), path)

    def fail() -> None:
        with RecordWriter(path) as writer:
            writer.append(whole(30))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    for where in (path, tmp_path):
        assert_equal(read_records(where, partial=True), whole(30))
        with pytest.raises(InvalidInput, match="did not end"):
            read_records(where)


def test_a_process_that_is_killed_leaves_what_it_appended(tmp_path: Path) -> None:
    """Ended without any clean-up in the middle of a run, it leaves every appended batch to be read."""
    code = f"""
import os, numpy as np
from pathlib import Path
from tritonbatch.loadtest.record_writer import RecordWriter
from tritonbatch.loadtest.records import Records
writer = RecordWriter(Path({str(tmp_path / "records-1.parquet")!r}))
for first in (0, 100, 200):
    records = Records("run", "model", "dynamic", np.arange(first, first + 100))
    records.sequence += first
    writer.append(records)
os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 9
    records = read_records(tmp_path, partial=True)
    assert records.sequence.tolist() == records.intended_ns.tolist() == list(range(300))


def test_cut_anywhere_a_partial_file_gives_its_whole_batches(tmp_path: Path) -> None:
    """Every length of the file gives a prefix of the batches, never an error beyond the first one, never half a one."""
    records = whole(40)
    path = tmp_path / "records.parquet"
    writer = RecordWriter(path)
    for first in range(0, 40, 10):
        writer.append(part(records, slice(first, first + 10)))
    partial = tmp_path / "records.parquet.partial"
    content, counts = partial.read_bytes(), []
    for length in range(0, len(content) + 1, 97):
        partial.write_bytes(content[:length])
        try:
            counts.append(len(read_records(path, partial=True)))
        except InvalidInput:
            counts.append(0)
    partial.write_bytes(content)
    assert_equal(read_records(path, partial=True), records)
    assert counts == sorted(counts)
    assert set(counts) <= {0, 10, 20, 30, 40}
    assert {10, 20, 30} <= set(counts)


def test_a_finished_file_and_a_partial_one_of_another_worker_are_merged(tmp_path: Path) -> None:
    """One of two workers died: what both have is read when partial records are asked for."""
    records = whole(100)
    write_records(part(records, slice(0, 60)), tmp_path / "records-0.parquet")
    RecordWriter(tmp_path / "records-1.parquet").append(part(records, slice(60, 80)))
    RecordWriter(tmp_path / "records-2.parquet")
    assert_equal(read_records(tmp_path, partial=True), part(records, slice(0, 80)))
    with pytest.raises(InvalidInput, match=r"records-1\.parquet\.partial is of a run that did not end"):
        read_records(tmp_path)
