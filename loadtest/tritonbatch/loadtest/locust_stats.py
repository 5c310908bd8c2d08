"""Locust's own table, fed in bulk: its event per request costs more than the request.

Locust's statistics are the live view (they round to two digits), in one process and summed over workers alike. Where
somebody listens to ``events.request``, each request is an event after all.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from locust.stats import bucket_response_time

from tritonbatch.errors import RequestFailed
from tritonbatch.loadtest.records import OK, STATUSES

METHOD = "infer"
OWN_LISTENERS = 1
"""Locust's runner listens to ``events.request`` itself; more than that are somebody's."""

Floats = npt.NDArray[np.float64]


def report(environment: Any, name: str, latency_ms: Floats, status: npt.NDArray[np.uint8], rows: int) -> None:
    """Tell Locust of requests that have ended, with *rows* rows each."""
    if not len(latency_ms):
        return
    if len(environment.events.request._handlers) > OWN_LISTENERS:  # noqa: SLF001 - there is no public count
        _as_events(environment, name, latency_ms, status, rows)
        return
    statistics, buckets = environment.stats, Counter(map(bucket_response_time, latency_ms.tolist()))
    for entry in (statistics.get(name, METHOD), statistics.total):
        _add(entry, latency_ms, buckets, rows)
    for code in np.unique(status[status != OK]):
        for _ in range(int((status == code).sum())):
            statistics.log_error(METHOD, name, RequestFailed(STATUSES[code]))


def _as_events(environment: Any, name: str, latency_ms: Floats, status: npt.NDArray[np.uint8], rows: int) -> None:
    for milliseconds, code in zip(latency_ms.tolist(), status.tolist(), strict=True):
        failure = None if code == OK else RequestFailed(STATUSES[code])
        environment.events.request.fire(
            request_type=METHOD,
            name=name,
            response_time=milliseconds,
            response_length=rows,
            response=None,
            context={},
            exception=failure,
        )


def _add(entry: Any, latency_ms: Floats, buckets: Mapping[int, int], rows: int) -> None:
    count, now = len(latency_ms), time.time()
    if entry.use_response_times_cache and int(now) > int(entry.last_request_timestamp or now):
        entry._cache_response_times(int(now) - 1)  # noqa: SLF001 - the web page's percentiles of the last seconds
    entry.num_requests += count
    entry.num_reqs_per_sec[int(now)] += count
    entry.last_request_timestamp = now
    entry.total_content_length += count * rows
    entry.total_response_time += float(latency_ms.sum())
    least = float(latency_ms.min())
    entry.min_response_time = least if entry.min_response_time is None else min(entry.min_response_time, least)
    entry.max_response_time = max(entry.max_response_time, float(latency_ms.max()))
    for milliseconds, times in buckets.items():
        entry.response_times[milliseconds] += times
