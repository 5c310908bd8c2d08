"""What a run looks like while it runs: Locust's table fed, a progress line for who started it, metrics for Prometheus.

Everything here is a view for the eye. The report is made from the records.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any, Protocol

import gevent
import numpy as np
import numpy.typing as npt
from gevent.pywsgi import WSGIServer
from locust.runners import MasterRunner, WorkerRunner

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest import locust_stats
from tritonbatch.loadtest.exposition import exposition

REPORT_S = 0.25


class Load(Protocol):
    """What is being played."""

    outstanding: int

    def ended_since(self, position: int) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.uint8]]:
        """Latency in ms from the intended start, and status, of the requests that ended after the first *position*."""

    def state(self) -> dict[str, float]:
        """``outstanding``, ``lag_ms`` (the latest) and ``cap_waits``."""


class Live:
    """Reports four times a second; in a master for all workers, elsewhere for *load*."""

    def __init__(self, environment: Any, load: Load | None) -> None:
        self._environment = environment
        self._options = environment.parsed_options
        self._load = load
        self._seen = 0
        self._workers: dict[str, dict[str, float]] = {}
        self._is_worker = isinstance(environment.runner, WorkerRunner)
        self._server: WSGIServer | None = None
        if load is not None and self._is_worker:
            environment.events.report_to_master.add_listener(self._tell_master)
        if isinstance(environment.runner, MasterRunner):
            environment.events.worker_report.add_listener(self._hear_worker)

    def start(self) -> Live:
        """Begin to report, in a greenlet, until :meth:`stop`.

        Raises:
            InvalidInput: the port for the metrics is not free.
        """
        if self._options.metrics_port and not self._is_worker:
            # Its own port, as Locust's web page may not be there.
            self._server = WSGIServer(("0.0.0.0", self._options.metrics_port), self._metrics, log=None)  # noqa: S104
            try:
                self._server.start()
            except OSError as error:
                raise InvalidInput(
                    f"--metrics-port is {self._options.metrics_port}: {error.strerror}; expected a free port."
                ) from error
        self._reporting = gevent.spawn(self._report)
        return self

    def stop(self) -> None:
        """Report for the last time."""
        self._reporting.kill()
        self._tell()
        if self._server is not None:
            self._server.stop(timeout=1)

    def _report(self) -> None:
        while True:
            gevent.sleep(REPORT_S)
            if not self._tell():
                self._environment.process_exit_code = 1
                gevent.spawn(self._environment.runner.quit)  # which stops the user, who kills this greenlet
                return

    def _tell(self) -> bool:
        """Tell Locust and the progress pipe; False when nobody reads that any more."""
        if self._load is not None:
            latency_ms, status = self._load.ended_since(self._seen)
            self._seen += len(status)
            name = f"{self._options.model} {self._options.variant}"
            locust_stats.report(self._environment, name, latency_ms, status, self._options.client_batch)
        if self._options.progress_fd < 0 or self._is_worker:
            return True
        try:
            os.write(self._options.progress_fd, json.dumps(self._snapshot()).encode() + b"\n")
        except OSError:  # whoever started this run is gone, so nobody wants it any more
            return False
        return True

    def _snapshot(self) -> dict[str, float]:
        total, state = self._environment.stats.total, self._state()
        rows = max(1, self._options.client_batch)
        return {
            "finished": total.num_requests * rows,
            "failed": total.num_failures * rows,
            "rate_per_s": total.num_reqs_per_sec.get(int(time.time()) - 1, 0) * rows,
            **{f"p{q}_ms": total.get_response_time_percentile(q / 100) or 0.0 for q in (50, 95, 99)},
            **state,
        }

    def _state(self) -> dict[str, float]:
        states = list(self._workers.values()) if self._load is None else [self._load.state()]
        return {
            "outstanding": sum(state["outstanding"] for state in states),
            "lag_ms": max((state["lag_ms"] for state in states), default=0.0),
            "cap_waits": sum(state["cap_waits"] for state in states),
        }

    def _metrics(self, environ: dict[str, Any], start_response: Any) -> list[bytes]:  # noqa: ARG002 - WSGI's signature
        start_response("200 OK", [("Content-Type", "text/plain; version=0.0.4")])
        return [exposition(self._environment.stats.total, self._state(), self._options.model).encode()]

    def _tell_master(self, client_id: str, data: dict[str, Any]) -> None:  # noqa: ARG002 - Locust's signature
        if self._load is not None:
            data["tritonbatch"] = self._load.state()

    def _hear_worker(self, client_id: str, data: dict[str, Any]) -> None:
        if "tritonbatch" in data:
            self._workers[client_id] = data["tritonbatch"]
