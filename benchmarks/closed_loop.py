"""A locustfile: each user sends, waits for the answer and sends again; every process writes what one window of it saw.

locust -f benchmarks/closed_loop.py --headless -u 16 -r 1000 --host localhost:8000 --model NAME --window-s 3
--folder DIR ends after the window and leaves DIR/PID.json of each process, the master included: CPU seconds and
latencies of the window.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import gevent
import gevent.event
import numpy as np
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from tritonbatch.client import Client, Connections, Request
from tritonbatch.whole_file import whole_file

WARM_UP_S, STRAGGLERS_S, DRAIN_S = 1.5, 10.0, 0.5
latencies_ns: list[int] = []
over = gevent.event.Event()
"""The window has ended: users stop by themselves, so that no request is abandoned, which can end the server."""
prepared: list[tuple[Client, Request]] = []
"""The one client and request of this process, made when the test starts: after the fork, before the first user."""


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _options(parser: LocustArgumentParser) -> None:
    parser.add_argument("--model", help="its input is x, a vector of FP32")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--protocol", choices=("http", "grpc"), default="http")
    parser.add_argument("--window-s", type=float, default=3.0)
    parser.add_argument("--folder", default=".")


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def _start(environment: Environment, **_: Any) -> None:
    options: Any = environment.parsed_options
    if not isinstance(environment.runner, MasterRunner):
        prepared.append(_prepared(options))
    gevent.spawn(_watch, environment, options.window_s, Path(options.folder))


def _prepared(options: Any) -> tuple[Client, Request]:
    if options.protocol == "grpc":
        import grpc.experimental.gevent  # noqa: PLC0415 - must come before any channel, and only then

        grpc.experimental.gevent.init_gevent()
    client = Client(
        options.host, protocol=options.protocol, retry=None, connections=Connections(limit=options.num_users)
    )
    return client, client.request(options.model, {"x": np.ones((1, options.width), np.float32)})


def _watch(environment: Environment, seconds: float, folder: Path) -> None:
    """Note CPU time and the number of answers at both ends of the window, write it down, end the run when all have."""
    gevent.sleep(WARM_UP_S)
    first, start_s, cpu_s = len(latencies_ns), time.perf_counter(), time.process_time()
    gevent.sleep(seconds)
    cpu_s, window_s = time.process_time() - cpu_s, time.perf_counter() - start_s
    over.set()
    seen = {"cpu_s": cpu_s, "window_s": window_s, "latencies_ns": latencies_ns[first:]}
    with whole_file(folder / f"{os.getpid()}.json") as partial:
        partial.write_text(json.dumps(seen))
    runner = environment.runner
    if runner is None or isinstance(runner, WorkerRunner):
        return
    writers = 1 + (runner.worker_count if isinstance(runner, MasterRunner) else 0)
    for _ in range(round(STRAGGLERS_S / 0.1)):
        if len(list(folder.glob("*.json"))) >= writers:
            break
        gevent.sleep(0.1)
    gevent.sleep(DRAIN_S)
    runner.quit()


class ClosedLoop(User):
    """Sends the same request again and again."""

    @task
    def keep_asking(self) -> None:
        """Send, wait, note, until the window is over."""
        client, request = prepared[0]
        fire = self.environment.events.request.fire
        while not over.is_set():
            sent_ns = time.perf_counter_ns()
            client.send(request)
            taken_ns = time.perf_counter_ns() - sent_ns
            latencies_ns.append(taken_ns)
            fire(request_type="infer", name="infer", response_time=taken_ns / 1e6, response_length=1, exception=None)
        raise StopUser
