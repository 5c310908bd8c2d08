"""What one run showed: client truth from its records beside server truth from its statistics.

The server's ``batch_stats`` count executions, so their mean is t(B); its ``inference_stats`` count requests, so each
request of a batch adds the whole batch's time there. Only ``batch_stats`` are used for service times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tritonbatch.client.counters import Executions
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import OK, STATUSES, Records


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Quantiles of a latency, in milliseconds; NaN when no request succeeded."""

    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Measurement:
    """One variant of one model under one load.

    ``latency`` counts from the intended start, ``raw_latency`` from the moment of sending. ``throughput_per_s`` is
    answered rows over the time from the first intended start to the last completion. ``queue_ms`` is the
    server's mean wait per request, from arrival at the scheduler to the start of the execution.
    """

    model: str
    variant: str
    load: Load
    requests: int
    errors: Mapping[str, int]
    duration_s: float
    throughput_per_s: float
    latency: Latency
    raw_latency: Latency
    schedule_lag_p99_ms: float
    queue_ms: float
    executions: tuple[Executions, ...]
    max_batch_size: int
    scheduler: str

    @property
    def failed(self) -> int:
        """Requests that got no usable answer."""
        return sum(self.errors.values())

    @property
    def mean_batch(self) -> float:
        """Rows per execution, as the server counted them (padding included); NaN without server statistics."""
        count = sum(e.count for e in self.executions)
        return sum(e.batch_size * e.count for e in self.executions) / count if count else float("nan")


def latency_of(records: Records, since_ns: npt.NDArray[np.int64]) -> Latency:
    """Exact quantiles of the successful requests' latency, counted from *since_ns* (one value per record)."""
    good = records.status == OK
    if not good.any():
        nan = float("nan")
        return Latency(p50_ms=nan, p95_ms=nan, p99_ms=nan)
    p50, p95, p99 = np.quantile((records.done_ns - since_ns)[good] / 1e6, [0.5, 0.95, 0.99])
    return Latency(p50_ms=float(p50), p95_ms=float(p95), p99_ms=float(p99))


def errors_of(records: Records) -> dict[str, int]:
    """How many requests ended in each status other than ``ok``; statuses that did not occur are absent."""
    counts = np.bincount(records.status, minlength=len(STATUSES))
    return {name: int(n) for name, n in zip(STATUSES, counts, strict=True) if n and name != "ok"}


def throughput_of(records: Records) -> tuple[float, float]:
    """Rows answered per second, and the seconds from first intended start to last completion."""
    good = records.status == OK
    if not good.any():
        return 0.0, 0.0
    duration_s = float(records.done_ns[good].max() - records.intended_ns.min()) / 1e9
    return float(records.rows[good].sum()) / duration_s, duration_s


def service_curve(measurements: Iterable[Measurement]) -> dict[int, float]:
    """t(B) in milliseconds by batch size, pooled over every execution of *measurements* (of one model)."""
    pooled: dict[int, tuple[int, float]] = {}
    for measurement in measurements:
        for e in measurement.executions:
            count, total = pooled.get(e.batch_size, (0, 0.0))
            pooled[e.batch_size] = (count + e.count, total + e.count * e.occupancy_ms)
    return {size: total / count for size, (count, total) in sorted(pooled.items()) if count}
