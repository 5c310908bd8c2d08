"""A Locust user that plays a seeded open-loop schedule against Triton and leaves records in Parquet.

Use it from a locustfile:

    from tritonbatch.loadtest.user import OpenLoopUser


    class Requests(OpenLoopUser):
        pass

and run it with ``locust -f FILE --headless -u 1 --host HOST:PORT --model NAME --rate 100 --requests 1000 --records
FILE.parquet``. One user is enough: the schedule, not the number of users, makes the load. Locust's own table is a live
view (it rounds); the records are the result.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import gevent
import numpy as np
from locust import User, events, task
from locust.argument_parser import LocustArgumentParser
from locust.exception import StopUser

from tritonbatch.client import Client, Connections, Overloaded, Request, TimedOut
from tritonbatch.errors import InvalidInput, RequestFailed, TritonbatchError
from tritonbatch.loadtest.arrivals import PROCESSES, schedule
from tritonbatch.loadtest.drive import Played, play
from tritonbatch.loadtest.folder import write_json
from tritonbatch.loadtest.records import OK, STATUSES, Records, write_records
from tritonbatch.loadtest.samples import sample_batches


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def _options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("tritonbatch: open-loop load on one model")
    group.add_argument("--model", help="name of the model to load")
    group.add_argument("--variant", default="served", help="what to call the served configuration in the records")
    group.add_argument("--protocol", choices=("http", "grpc"), default="http")
    group.add_argument("--arrivals", choices=sorted(PROCESSES), default="poisson", help="arrival process")
    group.add_argument("--load-name", default="load", help="what to call this load in the records")
    group.add_argument("--rate", type=float, default=100.0, help="arrivals per second")
    group.add_argument("--requests", type=int, default=1000, help="number of arrivals")
    group.add_argument("--seed", type=int, default=1, help="seed of the arrivals")
    group.add_argument("--client-batch", type=int, default=1, help="static batching: send full batches of this size")
    group.add_argument("--samples", default="", help=".npz with rows for every input; random values without it")
    group.add_argument("--cap", type=int, default=4096, help="most requests outstanding at once")
    group.add_argument("--drain-s", type=float, default=60.0, help="seconds to wait for answers after the last arrival")
    group.add_argument("--records", default="records.parquet", help="where to write the records")
    group.add_argument("--progress-fd", type=int, default=-1, help="file descriptor for progress lines (count done)")


class OpenLoopUser(User):
    """Plays the whole schedule once, then ends the run; its options are on Locust's command line."""

    abstract = True

    def on_start(self) -> None:
        """Connect, learn the model and prepare the requests, so that nothing of it falls into the run."""
        self.prepared: list[Request] = []
        try:
            self._prepare()
        except TritonbatchError as error:
            self._end(error.exit_code, str(error))

    def _end(self, exit_code: int = 0, message: str = "") -> None:
        if message:
            sys.stderr.write(f"error: {message}\n")
            self.environment.process_exit_code = exit_code
        gevent.spawn_later(0, self.environment.runner.quit)  # not from within the user that quit() waits for

    def _prepare(self) -> None:
        options = self.environment.parsed_options
        if not options.model:
            raise InvalidInput("No model was named: expected --model NAME, one that the server has loaded.")
        for flag, number in (("--client-batch", options.client_batch), ("--cap", options.cap)):
            if number < 1:
                raise InvalidInput(f"{flag} is {number}: expected at least 1.")
        self.arrivals = schedule(options.arrivals, options.rate, options.requests, options.seed)
        host = str(self.host or options.host or "").removeprefix("http://").rstrip("/")
        if options.protocol == "grpc":
            import grpc.experimental.gevent  # noqa: PLC0415 - must come before any channel, and only then

            grpc.experimental.gevent.init_gevent()
        self.client = Client(
            host,
            protocol=options.protocol,
            timeout_s=options.drain_s + 60,
            retry=None,  # a refusal is a result here
            connections=Connections(limit=options.cap),
        )
        samples = Path(options.samples) if options.samples else None
        batches = sample_batches(self.client, options.model, options.client_batch, samples)
        self.prepared = [self.client.request(options.model, batch) for batch in batches]

    @task
    def run_schedule(self) -> None:
        """Play the schedule, write the records, end the run."""
        if not self.prepared:
            raise StopUser
        options = self.environment.parsed_options
        records = Records(Path(options.records).stem, options.model, options.variant, self.arrivals)
        progress = gevent.spawn(self._report_progress, records, options.progress_fd)
        played = None
        try:
            played = play(
                records,
                self._send,
                self._fire(records),
                client_batch=options.client_batch,
                cap=options.cap,
                drain_s=options.drain_s,
            )
        finally:
            progress.kill()
            self.client.close()  # left to the interpreter's exit, gRPC's channel would wait for a hub that is gone
            write_records(records, Path(options.records))
            _write_summary(Path(options.records).with_suffix(".json"), records, played, options)
            self._end()
        raise StopUser

    def _report_progress(self, records: Records, descriptor: int) -> None:
        try:
            while descriptor >= 0:
                os.write(descriptor, f"{int(np.count_nonzero(records.status))}\n".encode())
                gevent.sleep(0.1)
        except BrokenPipeError:  # whoever started this run is gone, so nobody wants it any more
            self._end(1, "The reader of --progress-fd is gone; the run ends here.")

    def _send(self, sequence: int, rows: int) -> str:  # noqa: ARG002 - padding means that every batch is sent full
        try:
            self.client.send(self.prepared[sequence % len(self.prepared)])
        except Overloaded:
            return "rejected"
        except TimedOut:
            return "timeout"
        except RequestFailed:
            return "failed"
        return "ok"

    def _fire(self, records: Records) -> Any:
        name, fire = f"{records.model} {records.variant}", self.environment.events.request.fire

        def report(first: int, rows: int) -> None:
            latency_ms = float(records.done_ns[first] - records.intended_ns[first]) / 1e6
            status = records.status[first]
            failure = None if status == OK else RequestFailed(STATUSES[status])
            fire(request_type="infer", name=name, response_time=latency_ms, response_length=rows, exception=failure)

        return report


def _write_summary(path: Path, records: Records, played: Played | None, options: Any) -> None:
    summary = {
        "load": options.load_name,
        "loop": "open",
        "arrivals": options.arrivals,
        "rate_per_s": options.rate,
        "requests": options.requests,
        "seed": options.seed,
        "client_batch": options.client_batch,
        "protocol": options.protocol,
        "complete": played.complete if played else False,
        "schedule_lag_p99_ms": played.lag_ms(0.99) if played else None,
        "cap": options.cap,
        "cap_waits": played.cap_waits if played else None,
        "finished": int(np.count_nonzero(records.status)),
        "generator_cpu_s": time.process_time(),
    }
    write_json(path, summary)
