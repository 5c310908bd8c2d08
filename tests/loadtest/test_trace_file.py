"""Recorded arrivals: the forms that are read, and one sentence with file and line for every other."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest import trace_file
from tritonbatch.loadtest.trace_file import read_trace

TIMES_NS = [0, 500_000_000, 2_000_000_000]


@pytest.mark.parametrize(
    "content",
    [
        "arrival_ms\n0\n500\n2000\n",
        "arrival_ms\r\n1000\r\n1500.0\r\n3000\r\n",
        "\ufeffarrival_ms\n0\n500\n2000",
        "name, arrival_s ,x\na,7, \n\nb,7.5, \nc,9,\n",
        '"arrival_s"\n"0"\n"0.5"\n"2"\n',
        "timestamp\n1700000000\n1700000000.5\n1700000002\n",
        "timestamp\n2024-05-01T12:00:00Z\n2024-05-01T12:00:00.500Z\n2024-05-01T12:00:02Z\n",
        "timestamp\n2024-05-01 12:00:00\n2024-05-01T14:00:00.5+02:00\n2024-05-01 12:00:02\n",
        "0\n0.5\n2\n",
        "10\n10.5\n1.2e1\n",
    ],
)
def test_every_accepted_form_gives_the_same_times(tmp_path: Path, content: str) -> None:
    """Milliseconds, seconds, moments or a plain list, from 0, one row of default priority each."""
    (tmp_path / "t.csv").write_text(content, encoding="utf-8")
    trace = read_trace(tmp_path / "t.csv")
    assert trace.at_ns.tolist() == TIMES_NS
    assert trace.rows.tolist() == [1, 1, 1]
    assert trace.priority.tolist() == [0, 0, 0]


MOMENTS = [datetime(2024, 5, 1, 12, 0, second, micro, tzinfo=UTC) for second, micro in ((0, 0), (0, 500_000), (2, 0))]


@pytest.mark.parametrize(
    "columns",
    [
        {"arrival_ms": [0, 500, 2000]},
        {"arrival_s": [3.0, 3.5, 5.0], "other": ["a", "b", "c"]},
        {"timestamp": MOMENTS},
        {"timestamp": [moment.isoformat() for moment in MOMENTS]},
    ],
)
def test_parquet_has_the_same_columns(tmp_path: Path, columns: dict[str, Any]) -> None:
    """The columns of a Parquet file mean what they mean in CSV, whatever the file is called."""
    pq.write_table(pa.table({**columns, "batch": [1, 8, 2], "priority": [0, 1, 255]}), tmp_path / "t.csv")
    trace = read_trace(tmp_path / "t.csv")
    assert trace.at_ns.tolist() == TIMES_NS
    assert (trace.rows.dtype, trace.rows.tolist()) == (np.uint32, [1, 8, 2])
    assert (trace.priority.dtype, trace.priority.tolist()) == (np.uint8, [0, 1, 255])


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", r"t\.csv holds no arrivals: expected a CSV or Parquet file"),
        (b"\n\n", "holds no arrivals"),
        (b"arrival_ms\n", "holds no arrivals"),
        (b"name,when\na,1\n", r"t\.csv has the columns 'name, when': expected one of arrival_ms, arrival_s, timestamp"),
        (b"arrival_ms\n1\n3\n2\n", r"t\.csv, line 4 has the arrival_ms '2': expected no earlier time"),
        (b"1\n3\n\n2\n", r"t\.csv, line 4 has the arrival_s '2': expected no earlier time"),
        (b"arrival_ms\n-1\n3\n", "line 2 has the arrival_ms '-1': expected a finite number that is not negative"),
        (b"arrival_ms\n1\nnan\n", "line 3 has the arrival_ms 'nan'"),
        (b"nan\n1\n", "line 1 has the arrival_s 'nan'"),
        (b"1\ninf\n", "line 2 has the arrival_s 'inf'"),
        (b"arrival_ms\n1\n1e300\n", "line 3 has the arrival_ms '1e300'"),
        (b"arrival_ms\n1\n\n", None),
        (b"a,arrival_ms\n1,1\n2\n", "line 3 has the arrival_ms ''"),
        (b"arrival_ms\n2024-05-01T12:00:00Z\n", "line 2 has the arrival_ms '2024"),
        (b"timestamp\nyesterday\n", "line 2 has the timestamp 'yesterday': expected .* or a moment such as 2024"),
        (b"timestamp\n1912-05-01T12:00:00Z\n", "line 2 has the timestamp '1912"),
        (b"arrival_ms,batch\n1,1\n2,0\n", "line 3 has the batch '0': expected a whole number from 1 to 4294967295"),
        (b"arrival_ms,batch\n1,1.5\n", "line 2 has the batch '1.5'"),
        (b"arrival_ms,batch\n1,inf\n", "line 2 has the batch 'inf'"),
        (b"arrival_ms,priority\n1,256\n", "line 2 has the priority '256': expected a whole number from 0 to 255"),
        (b"arrival_ms,priority\n1,\n", "line 2 has the priority ''"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", r"Cannot read arrivals from .*t\.csv"),
        (b'arrival_ms\n"1\n2\n', r"Cannot read arrivals from .*t\.csv"),
        (b"PAR1 is not enough", r"Cannot read arrivals from .*t\.csv"),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(tmp_path: Path, content: bytes, says: str | None) -> None:
    """Empty, unsorted, negative, NaN and foreign files give one sentence that names the file and the line."""
    (tmp_path / "t.csv").write_bytes(content)
    if says is None:
        assert len(read_trace(tmp_path / "t.csv")) == 1
        return
    with pytest.raises(InvalidInput, match=says) as refusal:
        read_trace(tmp_path / "t.csv")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"arrival_ms": [1.0, None]}, "row 2 has the arrival_ms 'None'"),
        ({"arrival_ms": [3.0, 1.0]}, "row 2 has the arrival_ms '1.0': expected no earlier"),
        ({"arrival_ms": [True, True], "batch": [1, None]}, "row 2 has the batch 'None'"),
        ({"arrival_ms": [[1.0], [2.0]]}, "row 1 has the arrival_ms"),
        ({"x": [1]}, "has the columns 'x'"),
        ({"arrival_ms": pa.array([], pa.float64())}, "holds no arrivals"),
    ],
)
def test_parquet_that_is_no_trace_is_refused_with_its_row(tmp_path: Path, columns: dict[str, Any], says: str) -> None:
    """The same mistakes in Parquet name the row."""
    pq.write_table(pa.table(columns), tmp_path / "t.parquet")
    with pytest.raises(InvalidInput, match=says):
        read_trace(tmp_path / "t.parquet")


def test_too_many_arrivals_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file above the limit is not read to its end."""
    monkeypatch.setattr(trace_file, "MOST_ARRIVALS", 3)
    (tmp_path / "t.csv").write_text("1\n2\n3\n4\n5\n")
    pq.write_table(pa.table({"arrival_s": [1, 2, 3, 4]}), tmp_path / "t.parquet")
    for name in ("t.csv", "t.parquet"):
        with pytest.raises(InvalidInput, match="holds more than 3 arrivals"):
            read_trace(tmp_path / name)
    with pytest.raises(InvalidInput, match="Cannot read arrivals from"):
        read_trace(tmp_path)


@settings(deadline=None)
@given(st.lists(st.integers(0, 10**10), min_size=1, max_size=50).map(sorted))
def test_what_is_written_in_seconds_comes_back_to_the_nanosecond(
    tmp_path_factory: pytest.TempPathFactory, times_ns: list[int]
) -> None:
    """Times of a few seconds survive their text form exactly."""
    path = tmp_path_factory.mktemp("trace") / "t.txt"
    path.write_text("".join(f"{ns // 10**9}.{ns % 10**9:09d}\n" for ns in times_ns))
    assert read_trace(path).at_ns.tolist() == [ns - times_ns[0] for ns in times_ns]
