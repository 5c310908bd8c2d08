"""Server statistics: what lies between two readings, and that it is counted per execution."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tritonclient.grpc.service_pb2 import ModelStatistics

from tritonbatch.client import Client
from tritonbatch.client.counters import executions_between, mean_queue_ms
from tritonbatch.server import EmbeddedServer


def reading(*sizes: tuple[int, int, float]) -> ModelStatistics:
    """Statistics with (batch size, executions, total milliseconds) entries."""
    statistics = ModelStatistics()
    for size, count, total_ms in sizes:
        entry = statistics.batch_stats.add(batch_size=size)
        for part, share in (("compute_input", 0.1), ("compute_infer", 0.8), ("compute_output", 0.1)):
            getattr(entry, part).count = count
            getattr(entry, part).ns = round(total_ms * share * 1e6)
    return statistics


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ([], [], []),
        ([], [(4, 2, 10.0)], [(4, 2, 5.0)]),
        ([(4, 2, 10.0)], [(4, 2, 10.0)], []),
        ([(4, 2, 10.0)], [(8, 1, 7.0), (4, 3, 16.0)], [(4, 1, 6.0), (8, 1, 7.0)]),
    ],
)
def test_executions_between_two_readings(
    before: list[tuple[int, int, float]],
    after: list[tuple[int, int, float]],
    expected: list[tuple[int, int, float]],
) -> None:
    """Only what happened in between counts, by size, with the mean time of one execution."""
    found = executions_between(reading(*before), reading(*after))
    assert [(e.batch_size, e.count, pytest.approx(e.occupancy_ms)) for e in found] == expected


def test_no_requests_have_no_mean_queue_time() -> None:
    """Two equal readings give NaN, not zero and not a crash."""
    assert math.isnan(mean_queue_ms(ModelStatistics(), ModelStatistics()))


@pytest.mark.triton
def test_the_server_counts_what_was_sent(server: EmbeddedServer) -> None:
    """Sequential requests of 1, 3 and 8 rows are so many executions of just those sizes."""
    with Client(server.http_url) as client:
        before = client.settled_statistics("linear")
        for rows, times in ((1, 5), (3, 2), (8, 4)):
            for _ in range(times):
                client.infer("linear", {"x": np.ones((rows, 4), np.float32)})
        found = executions_between(before, client.settled_statistics("linear"))
    assert [(e.batch_size, e.count) for e in found] == [(1, 5), (3, 2), (8, 4)]
    assert all(e.occupancy_ms > 0 for e in found)
