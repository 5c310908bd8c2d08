"""A server that stands still for most of a run: its clients waited, and the numbers say so."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from tritonbatch.loadtest.generator import Drive, run_locust
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import OK, read_records
from tritonbatch.observe.measurement import latency_of
from tritonbatch.server import EmbeddedServer


@pytest.fixture
def tritonserver(repository: Path) -> Iterator[tuple[EmbeddedServer, psutil.Process]]:
    """A server of its own and its process, which is going when the test ends."""
    with EmbeddedServer(repository, config_name="dynamic", models=["linear"]) as server:
        assert server._guard is not None
        (process,) = psutil.Process(server._guard.pid).children()
        yield server, process
        process.resume()


@pytest.mark.triton
@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_six_frozen_seconds_of_ten_are_in_the_median(
    tritonserver: tuple[EmbeddedServer, psutil.Process], tmp_path: Path, protocol: str
) -> None:
    """At 500 rps with the server stopped from second 2 to 8, p50 from the intended start is seconds; none is lost."""
    server, process = tritonserver
    load = Load(name="frozen", rate_per_s=500, requests=5000, seed=3, process="constant")
    url = server.grpc_url if protocol == "grpc" else server.http_url
    drive = Drive(url=url, protocol=protocol, model="linear", variant="v", client_batch=1, samples=None)
    began = threading.Event()

    def freeze() -> None:
        if began.wait(30):
            time.sleep(2)
            process.send_signal(signal.SIGSTOP)
            time.sleep(6)
            process.send_signal(signal.SIGCONT)

    freezing = threading.Thread(target=freeze)
    freezing.start()
    run_locust(drive, load, tmp_path, lambda live: began.set() if live["finished"] else None)
    freezing.join(timeout=30)
    records = read_records(tmp_path)
    assert len(records) == 5000
    assert (records.status == OK).all(), np.bincount(records.status)
    assert latency_of(records, records.intended_ns).p50_ms > 1000
