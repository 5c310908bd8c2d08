"""Batch sizes 1, 2, 4 and so on up to the model's limit, each with two callers, then rising arrival rates.

locust -f loadtest/scenarios/sweep.py --headless -u 1 --host localhost:8000 --model NAME --records sweep/records.parquet

Each step leaves records of its own: records-batch-1.parquet, records-batch-2.parquet, …, records-rates.parquet.
"""

import copy
from pathlib import Path
from typing import Any

from tritonbatch.client import Client
from tritonbatch.loadtest.user import OpenLoopUser

SECONDS = 5


class Sweep(OpenLoopUser):
    """Throughput and latency against the batch size, then against the rate (`--pattern` takes that part's place)."""

    def phases(self, options: Any) -> list[Any]:
        """A step per batch size, and one of rates."""
        host = str(self.host or options.host)
        with Client(host.removeprefix("http://").rstrip("/"), protocol=options.protocol) as client:
            largest = client.contract(options.model).max_batch_size
        sizes = [1 << power for power in range(largest.bit_length())] or [1]
        steps = [
            _step(options, f"batch-{size}", pattern=f"closed:users=2,seconds={SECONDS}", client_batch=size)
            for size in sizes
        ]
        rates = options.pattern or f"step:rates=10/20/50/100/200,seconds={5 * SECONDS}"
        return [*steps, _step(options, "rates", pattern=rates, client_batch=1)]


def _step(options: Any, name: str, **changes: Any) -> Any:
    step = copy.copy(options)
    path = Path(options.records)
    step.records, step.load_name = str(path.with_name(f"{path.stem}-{name}{path.suffix}")), name
    for key, value in changes.items():
        setattr(step, key, value)
    return step
