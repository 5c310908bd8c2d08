"""The server's gauges and counters over a run, read from its metrics endpoint at an interval.

``nv_inference_pending_request_count`` is the number of requests that wait for their execution. Triton does not count
the requests that it refused because a queue was full: those are counted at the client (status ``rejected``).
"""

from __future__ import annotations

import re
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.errors import InvalidInput
from tritonbatch.whole_file import whole_file

COLUMNS = {
    "pending": "nv_inference_pending_request_count",
    "success": "nv_inference_request_success",
    "inferences": "nv_inference_count",
    "executions": "nv_inference_exec_count",
    "queue_us": "nv_inference_queue_duration_us",
}
"""Columns and the metric behind each; all but ``pending`` only grow."""
FAILURES = "nv_inference_request_failure"
REASONS = ("REJECTED", "CANCELED", "BACKEND", "OTHER")
"""Triton's reasons of a failure; REJECTED is a timeout in the queue, not a full queue."""
MOST_READINGS = 36_000
ANSWER_WITHIN_S = 2.0
LONGEST_ANSWER_BYTES = 16 << 20

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)\{(.*)\} (\S+)", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED = re.compile(r"\\(.)")


@dataclass(slots=True)
class Readings:
    """One model's metrics, reading by reading: ``time_ns`` of ``time.perf_counter_ns``, and a column of numbers each.

    ``missed`` counts the readings that got no answer; ``full`` says that MOST_READINGS were taken and no more were.
    """

    time_ns: list[int] = field(default_factory=list)
    values: list[dict[str, float]] = field(default_factory=list)
    missed: int = 0
    full: bool = False

    def column(self, name: str) -> npt.NDArray[np.float64]:
        """The column *name*: one of COLUMNS, or ``failed_<reason>``; NaN where the server did not show it."""
        return np.array([each.get(name, np.nan) for each in self.values], np.float64)


@contextmanager
def sampling(metrics_url: str, model: str, *, interval_s: float = 0.1) -> Iterator[Readings]:
    """Read the metrics of *model* from *metrics_url* every *interval_s* seconds while the block lasts, in a thread.

    The first reading is due at the start, the last at the end. A reading without an answer is missed and the next is
    tried in its turn.

    Raises:
        InvalidInput: the interval is not above zero, or the URL is not one of HTTP.
    """
    if not interval_s > 0:
        raise InvalidInput(f"The interval is {interval_s!r} s: expected more than 0.")
    if not metrics_url.startswith(("http://", "https://")):
        raise InvalidInput(f"The metrics URL is {metrics_url!r}: expected http://HOST:PORT/metrics.")
    readings, over = Readings(), threading.Event()
    thread = threading.Thread(target=_read_until, args=(over, readings, metrics_url, model, interval_s), daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        over.set()
        thread.join(2 * ANSWER_WITHIN_S + interval_s)


def _read_until(over: threading.Event, readings: Readings, url: str, model: str, interval_s: float) -> None:
    start = time.monotonic()
    for turn in range(1, MOST_READINGS + 1):
        ended = over.is_set()
        _read_once(readings, url, model)
        if ended:
            return
        over.wait(max(0.0, start + turn * interval_s - time.monotonic()))
    readings.full = True


def _read_once(readings: Readings, url: str, model: str) -> None:
    try:
        with urllib.request.urlopen(url, timeout=ANSWER_WITHIN_S) as answer:  # noqa: S310 - http, checked before
            text = answer.read(LONGEST_ANSWER_BYTES).decode(errors="replace")
    except (OSError, HTTPException):
        readings.missed += 1
        return
    readings.time_ns.append(time.perf_counter_ns())
    readings.values.append(model_values(text, model))


def model_values(text: str, model: str) -> dict[str, float]:
    """The columns of *model* in Prometheus' text format, summed over its versions; absent metrics are left out."""
    metric = {name: column for column, name in COLUMNS.items()}
    values: dict[str, float] = {}
    for name, labels, value in samples(text):
        if labels.get("model") != model:
            continue
        column = f"failed_{labels.get('reason', 'OTHER')}" if name == FAILURES else metric.get(name)
        if column:
            values[column] = values.get(column, 0.0) + value
    return values


def samples(text: str) -> Iterator[tuple[str, Mapping[str, str], float]]:
    """Name, labels and value of every sample with labels; lines that are none are passed over."""
    for name, labels, value in _SAMPLE.findall(text):
        try:
            number = float(value)
        except ValueError:
            continue
        yield name, {label: _ESCAPED.sub(_unescaped, content) for label, content in _LABEL.findall(labels)}, number


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]


def write_readings(readings: Readings, path: Path, *, start_ns: int = 0) -> None:
    """Write the readings as Parquet, whole or not at all; ``time_ns`` counts from *start_ns*, the start of the run."""
    names = [*COLUMNS, *(f"failed_{reason}" for reason in REASONS)]
    time_ns = np.array(readings.time_ns, np.int64) - start_ns
    table = pa.table({"time_ns": time_ns, **{name: readings.column(name) for name in names}})
    with whole_file(path) as temporary:
        pq.write_table(table, temporary, compression="zstd")
