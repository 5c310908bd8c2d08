"""The measurements of one model put where a decision needs them, and the thresholds that the decision uses.

A variant with ``max_batch_size`` 1 is one at a time; a static one (or ``offline``) is batched by its caller
and so serves work that can wait; any other is online. A variant that failed a request, under any load, is set apart.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from tritonbatch.observe.measurement import Measurement, service_curve
from tritonbatch.report.wording import in_load_order
from tritonbatch.repository import variants

WORTHWHILE = 1.5
"""A factor in throughput below this is the fixed cost of an execution, shared; the rows themselves cost as much as
alone, so every request of a batch waits for work that is not its own and gets little for it."""

OFFLINE_WORTHWHILE = 1.05
"""Work that can wait takes every gain beyond what one run repeats to: nothing is lost by waiting."""

WORSE_P99 = 1.5
"""A p99 counts as worse beyond this factor: the p99 of a few thousand requests is set by a few dozen of them."""

WORSE_P99_MS = 2.0
"""... and only by more than this: the network between a client and a server in one region varies by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """By variant, what ran under the lightest load and under the heaviest; *light* is empty if there was one load."""

    model: str
    light: Mapping[str, Measurement]
    heavy: Mapping[str, Measurement]
    failing: tuple[Measurement, ...]
    curve: Mapping[int, float]

    @property
    def serial(self) -> Measurement | None:
        """The variant that executes one request at a time, under the heaviest load."""
        return next((m for m in self.heavy.values() if is_serial(m)), None)

    @property
    def batched(self) -> Measurement | None:
        """The online variant other than serial that carried the most."""
        return best(m for m in self.heavy.values() if not is_serial(m) and not is_static(m))

    @property
    def static(self) -> Measurement | None:
        """The static variant that carried the most."""
        return best(m for m in self.heavy.values() if is_static(m))


def gather(measurements: Sequence[Measurement]) -> Evidence:
    """The evidence in *measurements*, all of one model and at least one."""
    ordered = in_load_order(measurements)
    lightest, heaviest = ordered[0].load.name, ordered[-1].load.name
    failing = tuple(m for m in ordered if m.failed)
    healthy = [m for m in ordered if m.variant not in {f.variant for f in failing}]
    return Evidence(
        model=ordered[0].model,
        light={m.variant: m for m in healthy if m.load.name == lightest != heaviest},
        heavy={m.variant: m for m in healthy if m.load.name == heaviest},
        failing=failing,
        curve=service_curve(ordered),
    )


def is_static(measurement: Measurement) -> bool:
    """Whether the caller forms the batches, so that requests wait for it."""
    return variants.is_static(measurement.variant)


def is_serial(measurement: Measurement) -> bool:
    """Whether the server executes one request at a time."""
    return measurement.max_batch_size <= 1 and not is_static(measurement)


def best(measurements: Iterable[Measurement]) -> Measurement | None:
    """The one that carried the most."""
    return max(measurements, key=lambda m: m.throughput_per_s, default=None)


def gain(measurement: Measurement, over: Measurement) -> float:
    """How many times the throughput of *over*; NaN if that carried nothing."""
    return measurement.throughput_per_s / over.throughput_per_s if over.throughput_per_s else math.nan


def worse(measurement: Measurement, than: Measurement) -> bool:
    """Whether the p99 is worse by more than chance and more than anyone would notice."""
    p99_ms, other_ms = measurement.latency.p99_ms, than.latency.p99_ms
    return p99_ms > other_ms * WORSE_P99 and p99_ms - other_ms > WORSE_P99_MS


def typical_batch(measurement: Measurement) -> int | None:
    """The batch size that carried the most requests; None without server statistics."""
    carrying = max(measurement.executions, key=lambda e: e.batch_size * e.count, default=None)
    return carrying.batch_size if carrying and carrying.count else None
