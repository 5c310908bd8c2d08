"""Sample measurements: a small seeded queueing loop stands in for the server, so that no test needs one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from tritonbatch.client.counters import Executions
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import OK, Records
from tritonbatch.observe.measurement import (
    Latency,
    Measurement,
    errors_of,
    latency_of,
    throughput_of,
)

Curve = Callable[[int], float]
MAX_BATCH = {"serial": 1, "static": 32, "dynamic": 32}


def weights_bound_ms(batch: int) -> float:
    """t(B) of a model that spends its time reading weights: almost flat."""
    return 3.1 + 0.34 * batch


def compute_bound_ms(batch: int) -> float:
    """t(B) of a model that spends its time computing: linear."""
    return 0.9 + 10.1 * batch


@dataclass(slots=True)
class Sample:
    """Measurements and the records that they are folds over."""

    measurements: list[Measurement] = field(default_factory=list)
    records: dict[tuple[str, str, str], Records] = field(default_factory=dict)

    def add(self, model: str, variant: str, load: Load, curve: Curve) -> None:
        """Run *variant* of *model* under *load* and keep what it showed."""
        records, executions = simulate(model, variant, load, curve)
        self.records[model, load.name, variant] = records
        self.measurements.append(measure(records, load, executions))


def simulate(model: str, variant: str, load: Load, curve: Curve) -> tuple[Records, tuple[Executions, ...]]:
    """One instance that takes whatever waits, up to its batch; static starts when its batch is full."""
    rng = np.random.default_rng(load.seed)
    arrivals_ms = np.cumsum(rng.exponential(1000 / load.rate_per_s, load.requests))
    records = Records(load.name, model, variant, (arrivals_ms * 1e6).astype(np.int64))
    sizes: Counter[int] = Counter()
    took_ms: Counter[int] = Counter()
    free_ms, first, most = 0.0, 0, MAX_BATCH.get(variant, 32)
    while first < load.requests:
        last, ready_ms = _batch(arrivals_ms, first, free_ms, most if variant == "static" else 0, most)
        size = most if variant == "static" else last - first
        service_ms = curve(size) * rng.lognormal(0, 0.08)
        free_ms = ready_ms + service_ms + 0.25
        records.sent_ns[first:last] = (
            (max(ready_ms, arrivals_ms[first]) * 1e6)
            if variant == "static"
            else (records.intended_ns[first:last] + rng.integers(10_000, 200_000, last - first))
        )
        records.done_ns[first:last] = int(free_ms * 1e6) + 200_000
        records.batch[first:last] = size if variant == "static" else 1
        sizes[size] += 1
        took_ms[size] += service_ms  # type: ignore[assignment]
        first = last
    records.status[:] = OK
    found = (Executions(batch_size=b, count=n, occupancy_ms=took_ms[b] / n) for b, n in sorted(sizes.items()))
    return records, tuple(found)


def _batch(arrivals_ms: np.ndarray[Any, Any], first: int, free_ms: float, full: int, most: int) -> tuple[int, float]:
    if full:
        last = min(first + full, len(arrivals_ms))
        return last, max(free_ms, float(arrivals_ms[last - 1]))
    start_ms = max(free_ms, float(arrivals_ms[first]))
    return min(first + most, int(np.searchsorted(arrivals_ms, start_ms, side="right"))), start_ms


def measure(records: Records, load: Load, executions: tuple[Executions, ...]) -> Measurement:
    """The measurement that *records* amount to."""
    throughput_per_s, duration_s = throughput_of(records)
    return Measurement(
        model=records.model,
        variant=records.variant,
        load=load,
        requests=len(records),
        errors=errors_of(records),
        duration_s=duration_s,
        throughput_per_s=throughput_per_s,
        latency=latency_of(records, records.intended_ns),
        raw_latency=latency_of(records, records.sent_ns),
        schedule_lag_p99_ms=0.2,
        queue_ms=1.5,
        executions=executions,
        max_batch_size=MAX_BATCH.get(records.variant, 32),
        scheduler="dynamic" if records.variant == "dynamic" else "none",
    )


@pytest.fixture(scope="session")
def sample() -> Sample:
    """Two models, three variants, two loads: one model that batching helps, one that it does not."""
    made = Sample()
    for model, curve, steady, saturating in (
        ("ranking_mlp", weights_bound_ms, 180, 3000),
        ("minilm", compute_bound_ms, 54, 160),
    ):
        for load in (
            Load(name="steady", rate_per_s=steady, requests=steady * 12, seed=7),
            Load(name="saturating", rate_per_s=saturating, requests=saturating * 6, seed=11),
        ):
            for variant in ("serial", "static", "dynamic"):
                made.add(model, variant, load, curve)
    return made


@pytest.fixture
def manifest() -> dict[str, Any]:
    """What a run writes down about itself, as far as the page cares."""
    return {
        "seed": 7,
        "started": "2026-01-15T10:30:00Z",
        "commit": "0123abc",
        "versions": {"tritonserver": "2.51.0", "onnxruntime": "1.20.1", "python": "3.11.9"},
        "host": {"cpus": 4, "model": "example cpu", "memory_gb": 16},
        "loads": [{"name": "steady", "rate_per_s": 180}, {"name": "saturating", "rate_per_s": 3000}],
        "configuration": {
            "ranking_mlp/serial": 'name: "ranking_mlp"\nbackend: "onnxruntime"\nmax_batch_size: 1\n',
            "ranking_mlp/dynamic": 'name: "ranking_mlp"\nmax_batch_size: 32\ndynamic_batching {\n}\n',
        },
    }


LIGHT = Load(name="steady", rate_per_s=180, requests=2000, seed=7)
HEAVY = Load(name="saturating", rate_per_s=3000, requests=20_000, seed=11)


def quick(
    variant: str, load: Load, per_s: float, p99_ms: float, executions: dict[int, tuple[int, float]]
) -> Measurement:
    """A measurement from its decisive numbers; *executions* is batch size: (count, t(B) in ms)."""
    latency = Latency(p50_ms=p99_ms / 2, p95_ms=p99_ms * 0.9, p99_ms=p99_ms)
    return Measurement(
        model="m",
        variant=variant,
        load=load,
        requests=load.requests,
        errors={},
        duration_s=load.requests / per_s,
        throughput_per_s=per_s,
        latency=latency,
        raw_latency=latency,
        schedule_lag_p99_ms=0.2,
        queue_ms=float("nan"),
        executions=tuple(Executions(batch_size=b, count=n, occupancy_ms=t) for b, (n, t) in executions.items()),
        max_batch_size=1 if variant == "serial" else 32,
        scheduler="dynamic" if variant == "dynamic" else "none",
    )


@pytest.fixture
def helped() -> list[Measurement]:
    """The ranking model's numbers: batching helps, and costs nothing at low traffic."""
    return [
        quick("serial", LIGHT, 180, 6.1, {1: (2000, 3.4)}),
        quick("static", LIGHT, 178, 195, {32: (62, 14.0)}),
        quick("dynamic", LIGHT, 180, 6.0, {1: (1500, 3.4), 2: (250, 3.8)}),
        quick("serial", HEAVY, 296, 61_000, {1: (20_000, 3.3)}),
        quick("static", HEAVY, 2200, 2600, {32: (625, 14.0)}),
        quick("dynamic", HEAVY, 1900, 4000, {4: (10, 4.5), 32: (623, 14.0)}),
    ]


@pytest.fixture
def not_helped() -> list[Measurement]:
    """The language model's numbers: t(B) grows as B."""
    return [
        quick("serial", LIGHT, 180, 30, {1: (2000, 11.0)}),
        quick("dynamic", LIGHT, 180, 33, {1: (1500, 11.0), 2: (250, 21.0)}),
        quick("serial", HEAVY, 88, 61_000, {1: (20_000, 11.0)}),
        quick("static", HEAVY, 96, 52_000, {16: (1250, 167.0)}),
        quick("dynamic", HEAVY, 95, 54_000, {16: (1250, 167.0)}),
    ]
