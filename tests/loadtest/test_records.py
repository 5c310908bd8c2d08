"""Records: what is written is what is read, whole or not at all, and folds count from the intended start."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest import records as module
from tritonbatch.loadtest.records import STATUSES, Records, read_records, write_records
from tritonbatch.observe.measurement import errors_of, latency_of, throughput_of
from tritonbatch.whole_file import whole_file


def sample(rows: int, seed: int = 0) -> Records:
    """Random but consistent records."""
    rng = np.random.default_rng(seed)
    records = Records("run", "model/<b>", "static-8", np.sort(rng.integers(0, 10**9, rows)))
    records.sent_ns = records.intended_ns + rng.integers(0, 10**6, rows)
    records.done_ns = records.sent_ns + rng.integers(1, 10**8, rows)
    records.status = rng.integers(0, len(STATUSES), rows).astype(np.uint8)
    records.batch[:] = 8
    return records


@settings(deadline=None)
@given(st.integers(1, 300), st.integers(0, 100))
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, rows: int, seed: int) -> None:
    """Every column survives Parquet, and no temporary file stays."""
    folder = tmp_path_factory.mktemp("records")
    written = sample(rows, seed)
    write_records(written, folder / "r.parquet")
    read = read_records(folder / "r.parquet")
    assert (read.run, read.model, read.variant) == (written.run, written.model, written.variant)
    for column in ("intended_ns", "sent_ns", "done_ns", "batch", "priority", "status"):
        np.testing.assert_array_equal(getattr(read, column), getattr(written, column))
    assert [path.name for path in folder.iterdir()] == ["r.parquet"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When writing fails midway the previous records are still there, and nothing half-written is."""
    path = tmp_path / "r.parquet"
    write_records(sample(5), path)

    def fail(table: object, where: Path, **options: object) -> None:
        Path(where).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(module.pq, "write_table", fail)
    with pytest.raises(OSError, match="No space left"):
        write_records(sample(9), path)
    assert len(read_records(path)) == 5
    assert [each.name for each in tmp_path.iterdir()] == ["r.parquet"]


def test_whatever_is_written_a_failure_leaves_no_half_file(tmp_path: Path) -> None:
    """The one way that files are written: a block that fails leaves the old content and no temporary beside it."""
    path = tmp_path / "file.json"
    path.write_text("old")

    def fail_halfway() -> None:
        with whole_file(path) as temporary:
            temporary.write_text("ha")
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        fail_halfway()
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file.json", "old")]
    with whole_file(path) as temporary:
        temporary.write_text("new")
    assert [(each.name, each.read_text()) for each in tmp_path.iterdir()] == [("file.json", "new")]


@pytest.mark.parametrize("content", [None, b"", b"not parquet"])
def test_files_that_are_no_records_are_named(tmp_path: Path, content: bytes | None) -> None:
    """A missing, empty or foreign file gives one sentence with its path."""
    path = tmp_path / "r.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"Cannot read records from .*r\.parquet"):
        read_records(path)


@pytest.mark.parametrize("missing", ["status", "intended_ns"])
def test_a_foreign_parquet_file_names_the_missing_column(tmp_path: Path, missing: str) -> None:
    """Parquet from elsewhere says which column it lacks."""
    path = tmp_path / "r.parquet"
    write_records(sample(3), path)
    pq.write_table(pq.read_table(path).drop_columns([missing]), path)
    with pytest.raises(InvalidInput, match=missing):
        read_records(path)


def test_latency_counts_from_the_intended_start() -> None:
    """A request sent a second late has that second in its latency, and not in the raw one beside it."""
    records = Records("r", "m", "v", np.zeros(4, np.int64))
    records.sent_ns[:] = 1_000_000_000
    records.done_ns[:] = 1_010_000_000
    records.status[:] = STATUSES.index("ok")
    assert latency_of(records, records.intended_ns).p50_ms == pytest.approx(1010)
    assert latency_of(records, records.sent_ns).p50_ms == pytest.approx(10)
    assert throughput_of(records) == (pytest.approx(4 / 1.01), pytest.approx(1.01))


def test_failures_are_counted_by_kind_and_never_in_throughput() -> None:
    """Only successful requests make throughput; every other status has its own count."""
    records = Records("r", "m", "v", np.zeros(5, np.int64))
    records.done_ns[:] = 1_000_000_000
    records.status[:] = [1, 1, 2, 3, 0]
    assert throughput_of(records)[0] == pytest.approx(2.0)
    assert errors_of(records) == {"unfinished": 1, "rejected": 1, "timeout": 1}
    records.status[:] = 2
    assert throughput_of(records) == (0.0, 0.0)
    assert np.isnan(latency_of(records, records.intended_ns).p99_ms)
