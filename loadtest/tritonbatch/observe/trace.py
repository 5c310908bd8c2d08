"""Read Triton's own trace into columns: the life of every request, and which requests shared an execution. Pure.

Triton (``--trace-config mode=triton``, level TIMESTAMPS) writes one entry per moment of a request, all on one line. It
does not escape request ids, so that a file need not be valid JSON, and a killed server leaves half an entry at the end:
entries are therefore recognised one by one, and whatever is no whole entry is passed over. Times are nanoseconds of the
server's monotonic clock.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.errors import InvalidInput
from tritonbatch.whole_file import whole_file

BLOCK_BYTES = 8 << 20
LONGEST_ENTRY_BYTES = 1 << 20

_MOMENT = re.compile(rb'\{"id":(\d+),"timestamps":\[\{"name":"([A-Z_]+)","ns":(\d+)\}\]\}')
_REQUEST = re.compile(rb'\{"id":(\d+),"model_name":"(.*?)","model_version":(-?\d+)(.*?)\}(?=,\{"id":|\]|$)', re.DOTALL)
_REQUEST_ID = re.compile(rb',"request_id":"(.*?)"(?:,"parent_id":\d+)?$', re.DOTALL)
_PARENT = re.compile(rb',"parent_id":(\d+)$')
_ENTRY_START = b',{"id":'

MOMENTS = {
    b"HTTP_RECV_START": "receive_ns",
    b"GRPC_WAITREAD_END": "receive_ns",
    b"REQUEST_START": "request_start_ns",
    b"QUEUE_START": "queue_start_ns",
    b"COMPUTE_START": "compute_start_ns",
    b"COMPUTE_INPUT_END": "compute_input_end_ns",
    b"COMPUTE_OUTPUT_START": "compute_output_start_ns",
    b"COMPUTE_END": "compute_end_ns",
    b"REQUEST_END": "request_end_ns",
    b"HTTP_SEND_END": "send_ns",
    b"GRPC_SEND_END": "send_ns",
}
"""The column of each moment that Triton names; the others (GRPC_WAITREAD_START is when a thread began to wait for any
call) say nothing about this request."""
TIMES = tuple(dict.fromkeys(MOMENTS.values()))

SCHEMA = pa.schema(
    [
        ("request_id", pa.string()),
        ("model", pa.dictionary(pa.int16(), pa.string())),
        ("version", pa.int64()),
        ("parent", pa.int64()),
        *((name, pa.int64()) for name in TIMES),
        ("execution", pa.int64()),
        ("batch", pa.uint32()),
    ]
)

Text = npt.NDArray[np.str_]
Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The traced requests in the order in which they started, one array per column.

    A time is -1 where the moment was not reached or not written. ``parent`` is the trace id of the ensemble's request,
    -1 for a request that came from outside. ``execution`` numbers the executions by their start (requests of one
    execution share the number), -1 for a request that never ran; ``batch`` is the execution's size: the requests in
    it, or their rows after :func:`with_rows`; 0 for a request that never ran.
    """

    request_id: Text
    model: Text
    version: Numbers
    parent: Numbers
    receive_ns: Numbers
    request_start_ns: Numbers
    queue_start_ns: Numbers
    compute_start_ns: Numbers
    compute_input_end_ns: Numbers
    compute_output_start_ns: Numbers
    compute_end_ns: Numbers
    request_end_ns: Numbers
    send_ns: Numbers
    execution: Numbers
    batch: npt.NDArray[np.uint32]

    def __len__(self) -> int:
        return len(self.request_id)


def read_trace(paths: Sequence[Path]) -> Trace:
    """Read the files of one server, as a whole; files cut off by a kill give the entries that are whole.

    Raises:
        InvalidInput: a file cannot be read or is no trace of Triton, or there is no traced request in any.
    """
    requests: list[tuple[int, str, str, int, int]] = []
    moments: list[tuple[Numbers, npt.NDArray[np.uint8], Numbers]] = []
    for path in paths:
        for block in _blocks(path):
            requests.extend(_requests(block))
            moments.append(_moments(block))
    if not requests:
        named = ", ".join(map(str, paths)) or "no file"
        raise InvalidInput(
            f"There is no traced request in {named}: expected some; switch the trace off (which writes it out) before "
            "reading it."
        )
    return _assemble(requests, moments)


def _blocks(path: Path) -> Iterator[bytes]:
    """The file in pieces that end where an entry ends."""
    try:
        with path.open("rb") as file:
            rest = file.read(BLOCK_BYTES)
            if rest and not rest.startswith(b'[{"id":'):
                raise InvalidInput(
                    f"{path} is no trace of Triton: it starts with {rest[:20]!r}, expected '[{{\"id\":'; give the "
                    "file named by --trace-config triton,file=…."
                )
            while more := file.read(BLOCK_BYTES):
                whole, rest = _cut(rest)
                yield whole
                rest += more
            yield rest
    except OSError as error:
        raise InvalidInput(f"Cannot read the trace {path}: {error}; expected a file that Triton wrote.") from error


def _cut(block: bytes) -> tuple[bytes, bytes]:
    at = block.rfind(_ENTRY_START, max(0, len(block) - LONGEST_ENTRY_BYTES))
    return (block, b"") if at < 0 else (block[:at], block[at:])


def _requests(block: bytes) -> Iterator[tuple[int, str, str, int, int]]:
    """Per request: its trace id, its request id, model, version and its parent's trace id."""
    for number, model, version, rest in _REQUEST.findall(block):
        named, parent = _REQUEST_ID.match(rest), _PARENT.search(rest)
        yield (
            int(number),
            named[1].decode(errors="replace") if named else "",
            model.decode(errors="replace"),
            int(version),
            int(parent[1]) if parent else -1,
        )


def _moments(block: bytes) -> tuple[Numbers, npt.NDArray[np.uint8], Numbers]:
    """Trace ids, columns (index in TIMES) and times of a block's moments."""
    code = {name: TIMES.index(column) for name, column in MOMENTS.items()}
    known = [found for found in _MOMENT.findall(block) if found[1] in code]
    count = len(known)
    return (
        np.fromiter((int(found[0]) for found in known), np.int64, count),
        np.fromiter((code[found[1]] for found in known), np.uint8, count),
        np.fromiter((int(found[2]) for found in known), np.int64, count),
    )


def _assemble(
    requests: list[tuple[int, str, str, int, int]], moments: list[tuple[Numbers, npt.NDArray[np.uint8], Numbers]]
) -> Trace:
    numbers, first = np.unique(np.array([request[0] for request in requests], np.int64), return_index=True)
    ids, columns, ns = (np.concatenate(parts) for parts in zip(*moments, strict=True))
    row = np.minimum(np.searchsorted(numbers, ids), len(numbers) - 1)
    known = numbers[row] == ids
    times = np.full((len(TIMES), len(numbers)), -1, np.int64)
    times[columns[known], row[known]] = ns[known]
    order = np.argsort(times[TIMES.index("request_start_ns")], kind="stable")
    kept = [requests[index] for index in first[order]]
    model, version = np.array([each[2] for each in kept], str), np.array([each[3] for each in kept], np.int64)
    by_name = {name: times[index][order] for index, name in enumerate(TIMES)}
    execution = executions(model, version, by_name["compute_start_ns"], by_name["compute_input_end_ns"])
    return Trace(
        request_id=np.array([each[1] for each in kept], str),
        model=model,
        version=version,
        parent=np.array([each[4] for each in kept], np.int64),
        **by_name,
        execution=execution,
        batch=batch_sizes(execution, np.ones(len(kept), np.int64)),
    )


def executions(model: Text, version: Numbers, start_ns: Numbers, input_end_ns: Numbers) -> Numbers:
    """Number the executions by their start; -1 where *start_ns* is.

    A backend reports one COMPUTE_START for all requests of an execution. Two instances may start within the same
    nanosecond, so that the end of the input's gathering, which is an execution's own too, must agree as well.
    """
    numbers = np.full(len(model), -1, np.int64)
    ran = start_ns >= 0
    if not ran.any():
        return numbers
    codes = np.unique(model[ran], return_inverse=True)[1]
    key = np.stack([start_ns[ran], input_end_ns[ran], codes, version[ran]], axis=1)
    numbers[ran] = np.unique(key, axis=0, return_inverse=True)[1].reshape(-1)
    return numbers


def batch_sizes(execution: Numbers, rows: Numbers) -> npt.NDArray[np.uint32]:
    """The size of each request's execution: the sum of *rows* over the requests in it; 0 where it never ran."""
    ran = execution >= 0
    sizes = np.zeros(len(execution), np.uint32)
    if ran.any():
        sizes[ran] = np.bincount(execution[ran], weights=rows[ran]).astype(np.uint32)[execution[ran]]
    return sizes


def write_trace(trace: Trace, path: Path) -> None:
    """Write *trace* as Parquet (``trace.parquet`` beside the records), whole or not at all."""
    columns = {name: _stored(getattr(trace, name)) for name in SCHEMA.names}
    with whole_file(path) as temporary:
        pq.write_table(pa.table(columns).cast(SCHEMA), temporary, compression="zstd")


def read_trace_table(path: Path) -> Trace:
    """Read what :func:`write_trace` wrote.

    Raises:
        InvalidInput: the file is missing, is not Parquet, or lacks a column.
    """
    try:
        table = pq.read_table(path)
        columns = {name: _loaded(table.column(name)) for name in SCHEMA.names}
    except (OSError, pa.ArrowInvalid, KeyError) as error:
        raise InvalidInput(f"Cannot read the trace table {path}: {error}; expected a trace.parquet.") from error
    return Trace(**columns)


def _stored(column: npt.NDArray[Any]) -> pa.Array[Any]:
    texts: Iterable[str] = column.tolist()
    return pa.array(texts, pa.string()) if column.dtype.kind == "U" else pa.array(column)


def _loaded(column: pa.ChunkedArray[Any]) -> npt.NDArray[Any]:
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    return np.array(column.cast(pa.string()).to_pylist(), str)
