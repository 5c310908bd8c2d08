"""Triton's trace, from the lines as 2.51 writes them to columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.tracing import trace_files
from tritonbatch.observe import trace as trace_module
from tritonbatch.observe.trace import SCHEMA, Trace, executions, read_trace, read_trace_table, write_trace

HTTP = (
    '{"id":1,"timestamps":[{"name":"HTTP_RECV_START","ns":100}]},'
    '{"id":1,"timestamps":[{"name":"HTTP_RECV_END","ns":105}]},'
    '{"id":1,"model_name":"slow","model_version":1,"request_id":"run-1"},'
    '{"id":1,"timestamps":[{"name":"REQUEST_START","ns":110}]},'
    '{"id":1,"timestamps":[{"name":"QUEUE_START","ns":120}]},'
    '{"id":1,"timestamps":[{"name":"INFER_RESPONSE_COMPLETE","ns":185}]},'
    '{"id":1,"timestamps":[{"name":"COMPUTE_START","ns":150}]},'
    '{"id":1,"timestamps":[{"name":"COMPUTE_INPUT_END","ns":155}]},'
    '{"id":1,"timestamps":[{"name":"COMPUTE_OUTPUT_START","ns":180}]},'
    '{"id":1,"timestamps":[{"name":"COMPUTE_END","ns":190}]},'
    '{"id":1,"timestamps":[{"name":"REQUEST_END","ns":195}]},'
    '{"id":1,"timestamps":[{"name":"HTTP_SEND_START","ns":196}]},'
    '{"id":1,"timestamps":[{"name":"HTTP_SEND_END","ns":200}]}'
)
GRPC = (
    '{"id":2,"model_name":"slow","model_version":1,"request_id":"run-0"},'
    '{"id":2,"timestamps":[{"name":"REQUEST_START","ns":108}]},'
    '{"id":2,"timestamps":[{"name":"QUEUE_START","ns":109}]},'
    '{"id":2,"timestamps":[{"name":"COMPUTE_START","ns":150}]},'
    '{"id":2,"timestamps":[{"name":"COMPUTE_INPUT_END","ns":155}]},'
    '{"id":2,"timestamps":[{"name":"COMPUTE_OUTPUT_START","ns":180}]},'
    '{"id":2,"timestamps":[{"name":"COMPUTE_END","ns":190}]},'
    '{"id":2,"timestamps":[{"name":"REQUEST_END","ns":192}]},'
    '{"id":2,"timestamps":[{"name":"GRPC_WAITREAD_START","ns":1}]},'
    '{"id":2,"timestamps":[{"name":"GRPC_WAITREAD_END","ns":90}]},'
    '{"id":2,"timestamps":[{"name":"GRPC_SEND_START","ns":193}]},'
    '{"id":2,"timestamps":[{"name":"GRPC_SEND_END","ns":210}]}'
)
REFUSED = (
    '{"id":3,"model_name":"slow","model_version":1,"request_id":"a"b\\c"},'
    '{"id":3,"timestamps":[{"name":"REQUEST_START","ns":300}]},'
    '{"id":3,"timestamps":[{"name":"QUEUE_START","ns":301}]},'
    '{"id":3,"timestamps":[{"name":"REQUEST_END","ns":302}]}'
)
CHILD = (
    '{"id":5,"model_name":"step","model_version":2,"request_id":"run-9","parent_id":4},'
    '{"id":5,"activity":"TENSOR_QUEUE_INPUT","tensor":{"name":"x"}},'
    '{"id":5,"timestamps":[{"name":"REQUEST_START","ns":400}]}'
)


def read(text: str, folder: Path) -> Trace:
    """The trace in a file that holds *text*."""
    path = folder / "trace.json"
    path.write_text(text, encoding="utf-8")
    return read_trace([path])


def test_moments_become_columns(tmp_path: Path) -> None:
    """Requests come in the order in which they started, each moment in its column, whatever the protocol."""
    trace = read(f"[{HTTP},{GRPC},{REFUSED}]", tmp_path)
    assert trace.request_id.tolist() == ["run-0", "run-1", 'a"b\\c']
    assert trace.receive_ns.tolist() == [90, 100, -1]
    assert trace.request_start_ns.tolist() == [108, 110, 300]
    assert trace.queue_start_ns.tolist() == [109, 120, 301]
    assert trace.compute_start_ns.tolist() == [150, 150, -1]
    assert trace.compute_end_ns.tolist() == [190, 190, -1]
    assert trace.request_end_ns.tolist() == [192, 195, 302]
    assert trace.send_ns.tolist() == [210, 200, -1]
    assert trace.execution.tolist() == [0, 0, -1]
    assert trace.batch.tolist() == [2, 2, 0]


def test_children_of_an_ensemble_name_their_parent(tmp_path: Path) -> None:
    """A request that another request made carries its parent's number; entries of other kinds are passed over."""
    trace = read(f"[{HTTP},{CHILD}]", tmp_path)
    assert trace.parent.tolist() == [-1, 4]
    assert trace.model.tolist() == ["slow", "step"]
    assert trace.version.tolist() == [1, 2]
    assert trace.request_id.tolist() == ["run-1", "run-9"]


@pytest.mark.parametrize("lost", [1, 30, 100, 400])
def test_a_file_cut_off_keeps_its_whole_entries(tmp_path: Path, lost: int) -> None:
    """A kill in the middle of an entry loses that entry and what follows, nothing before."""
    trace = read(f"[{HTTP},{GRPC}"[:-lost], tmp_path)
    assert set(trace.request_id.tolist()) == {"run-0", "run-1"}
    assert trace.send_ns[trace.request_id == "run-1"].tolist() == [200]
    assert trace.send_ns[trace.request_id == "run-0"].tolist() == [-1]


@pytest.mark.parametrize("block", [64, 200, 1000])
def test_the_size_of_the_pieces_does_not_matter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    """A file read in small pieces gives what it gives in one."""
    whole = read(f"[{HTTP},{GRPC},{REFUSED},{CHILD}]", tmp_path)
    monkeypatch.setattr(trace_module, "BLOCK_BYTES", block)
    pieces = read_trace([tmp_path / "trace.json"])
    for name in SCHEMA.names:
        np.testing.assert_array_equal(getattr(pieces, name), getattr(whole, name))


@pytest.mark.parametrize("text", ['{"traceEvents": []}', "a;b;c\n1;2;3", "[1, 2]", "\x00\x01"])
def test_a_foreign_file_is_named(tmp_path: Path, text: str) -> None:
    """A file that is no trace of Triton is refused in one sentence with its name and its first characters."""
    with pytest.raises(InvalidInput, match=r"trace\.json is no trace of Triton"):
        read(text, tmp_path)


def test_nothing_traced_is_no_trace(tmp_path: Path) -> None:
    """An empty file, one that is not there, and no file at all are mistakes with a next step."""
    for text in ("", "[]"):
        with pytest.raises(InvalidInput):
            read(text, tmp_path)
    with pytest.raises(InvalidInput, match="Cannot read the trace"):
        read_trace([tmp_path / "missing.json"])
    with pytest.raises(InvalidInput, match="no traced request in no file"):
        read_trace([])


def test_rolled_files_are_one_trace(tmp_path: Path) -> None:
    """The files that Triton numbers are found in the order of their numbers, and read as one."""
    for name, text in (("t.json.10", GRPC), ("t.json.9", HTTP), ("t.json.bak", ""), ("other.json", "")):
        (tmp_path / name).write_text(f"[{text}]")
    files = trace_files(tmp_path / "t.json")
    assert [path.name for path in files] == ["t.json.9", "t.json.10"]
    assert len(read_trace(files)) == 2


def test_executions_that_start_together_stay_apart() -> None:
    """Two instances that start in the same nanosecond are two executions, as are two models; the order is by start."""
    model = np.array(["a", "a", "a", "b", "a", "a"])
    version = np.ones(6, np.int64)
    start_ns = np.array([20, 20, 20, 20, 10, -1])
    input_end_ns = np.array([25, 26, 25, 25, 11, -1])
    numbers = executions(model, version, start_ns, input_end_ns).tolist()
    assert numbers[0] == numbers[2]
    assert len({numbers[0], numbers[1], numbers[3], numbers[4]}) == 4
    assert (numbers[4], numbers[5]) == (0, -1)


def test_the_table_comes_back_as_it_was(tmp_path: Path) -> None:
    """What was written as Parquet is read again the same; a file that is none is refused."""
    trace = read(f"[{HTTP},{GRPC},{REFUSED}]", tmp_path)
    write_trace(trace, tmp_path / "trace.parquet")
    again = read_trace_table(tmp_path / "trace.parquet")
    for name in SCHEMA.names:
        np.testing.assert_array_equal(getattr(again, name), getattr(trace, name))
    with pytest.raises(InvalidInput, match=r"expected a trace\.parquet"):
        read_trace_table(tmp_path / "trace.json")
