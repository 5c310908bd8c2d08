"""A Locust user that plays a load against Triton, alone or as one of many workers, and leaves records in Parquet.

Use it from a locustfile:

    from tritonbatch.loadtest.user import OpenLoopUser


    class Requests(OpenLoopUser):
        pass

and run it with ``locust -f FILE --headless -u 1 --host HOST:PORT --model NAME --rate 100 --requests 1000 --records
FILE.parquet``; with ``--processes 2 -u 2``, or a master and workers, each plays its part of the same schedule. One user
per process is enough: the schedule, not the number of users, makes the load. Locust's own table is a live view (it
rounds); the records are the result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import gevent
import numpy as np
from locust import User, events, task
from locust.exception import StopUser
from locust.runners import MasterRunner, WorkerRunner

from tritonbatch.client import Client, Connections, Request
from tritonbatch.client.options import Options
from tritonbatch.errors import InvalidInput, TritonbatchError
from tritonbatch.loadtest import crew, flags
from tritonbatch.loadtest.closed import ClosedLoop
from tritonbatch.loadtest.drive import Player
from tritonbatch.loadtest.folder import write_json
from tritonbatch.loadtest.live import Live
from tritonbatch.loadtest.records import write_records
from tritonbatch.loadtest.samples import Samples, sample_batches
from tritonbatch.loadtest.senders import prepare_grpc, sender_for
from tritonbatch.loadtest.summary import merged, summary_of
from tritonbatch.loadtest.traffic import closed_records_of, picker, records_of, share_of, traffic_of

START_DELAY_NS = 50_000_000
"""A run in one process begins so much later than it could, with everything ready."""


@events.init.add_listener  # type: ignore[untyped-decorator]
def _enlist(environment: Any, **_: Any) -> None:
    options = environment.parsed_options
    kinds = [kind for kind in environment.user_classes if issubclass(kind, OpenLoopUser)]
    if options is None or not kinds:
        return
    for name, value in kinds[0].defaults.items():
        if getattr(options, name) == flags.DEFAULTS[name]:
            setattr(options, name, value)
    path = Path(options.records)

    def finish(outcome: crew.Outcome) -> None:
        summary = merged(list(outcome.summaries.values()), outcome.lost)
        write_json(path.with_suffix(".json"), summary)
        failure = summary.get("error") or (
            f"{outcome.lost} workers were lost; the records of the others are kept." if outcome.lost else ""
        )
        end(environment, summary.get("exit_code", InvalidInput.exit_code) if failure else 0, failure)

    def begin(**_: Any) -> None:
        environment.tritonbatch_playing = False  # the web page may start several runs

    environment.events.test_start.add_listener(begin)
    crew.enlist(environment, path.parent, finish)
    if isinstance(environment.runner, MasterRunner):
        try:
            Live(environment, None).start()
        except InvalidInput as error:
            end(environment, error.exit_code, str(error))


def end(environment: Any, exit_code: int = 0, message: str = "") -> None:
    """End the run, with one sentence when something was wrong."""
    if message:
        if environment.process_exit_code is None:  # several users may make the same mistake
            sys.stderr.write(f"error: {message}\n")
        environment.process_exit_code = exit_code
    gevent.spawn_later(0, environment.runner.quit)  # not from within the user that quit() waits for


class OpenLoopUser(User):
    """Plays the whole load once, then ends the run; its options are on Locust's command line.

    *samples* in a subclass takes the place of ``--samples``: a file, or a function of a random generator and a number
    of rows that makes inputs. *defaults* takes the place of the defaults of the options, by name.
    """

    abstract = True
    samples: Samples = None
    defaults: ClassVar[Mapping[str, Any]] = {}

    def phases(self, options: Any) -> list[Any]:
        """The options of each load to play, one after the other; several need records of their own."""
        return [options]

    def on_start(self) -> None:
        """Connect, learn the model and prepare the requests, so that nothing of it falls into the run."""
        self._phases: list[Any] = []
        if getattr(self.environment, "tritonbatch_playing", False):
            return  # one plays for the whole process
        self.environment.tritonbatch_playing = True
        try:
            flags.check(self.environment.parsed_options)
            self._phases = self.phases(self.environment.parsed_options)
            if len(self._phases) > 1 and isinstance(self.environment.runner, WorkerRunner):
                raise InvalidInput("Several loads one after the other run in one process: leave --processes out.")
            self._prepare(self._phases[0])
        except TritonbatchError as error:
            self._phases = []
            self._give_up(error)

    def _prepare(self, options: Any) -> None:
        self._requests: list[Request] = []
        self._traffic = traffic_of(options)
        prepare_grpc(options.protocol)
        self._connections = Connections(limit=options.cap)
        self._client = Client(
            str(options.host or self.host or "").removeprefix("http://").rstrip("/"),
            protocol=options.protocol,
            timeout_s=options.drain_s + 60,
            retry=None,  # a refusal is a result here
            connections=self._connections,
        )
        own = type(self).samples  # from the instance, a function would come as a method
        source = Path(own) if isinstance(own, str) else own
        if own is None and options.samples:
            source = Path(options.samples)
        self._offsets = []
        for rows, priority in self._traffic.kinds:
            batches = sample_batches(self._client, options.model, rows, source)
            self._offsets.append((len(self._requests), len(batches)))
            asked = Options(priority=priority)
            self._requests += [self._client.request(options.model, batch, options=asked) for batch in batches]

    @task
    def run_schedule(self) -> None:
        """Play this process's part, write the records, end the run."""
        if not self._phases:
            raise StopUser
        try:
            for number, options in enumerate(self._phases):
                if number:
                    self._prepare(options)
                self._play(options, crew.wait_for_share(self.environment))
        except TritonbatchError as error:
            self._give_up(error)
        else:
            if not isinstance(self.environment.runner, WorkerRunner):
                end(self.environment)
        raise StopUser

    def _play(self, options: Any, share: crew.Share) -> None:
        load = self._load(options, share)
        pick = picker(self._traffic, self._offsets, share.index, share.workers)
        id_of = partial(self._id_of, share, load) if options.request_ids else None
        sender = sender_for(self._client, self._requests, pick, connections=self._connections, id_of=id_of)
        sender.done = load.done
        live = Live(self.environment, load).start()
        start_ns = share.start_ns + (START_DELAY_NS if share.workers == 1 else 0)
        began_s = time.process_time()
        try:
            load.play(sender.start, start_ns=start_ns, drain_s=options.drain_s)
        finally:
            cpu_s = time.process_time() - began_s
            live.stop()
            sender.close()
            self._client.close()  # left to the interpreter's exit, gRPC's channel would wait for a hub that is gone
            self._keep(options, share, load, cpu_s)

    def _id_of(self, share: crew.Share, load: Player | ClosedLoop, sequence: int) -> str:
        """``<run>-<number of the arrival in the whole run>``; of a client-side batch, the number of its first row."""
        number = share.index + sequence * share.workers
        if isinstance(load, Player):
            number = int(load.records.sequence[sequence * self._traffic.client_batch])
        return f"{self.environment.parsed_options.request_ids}-{number}"

    def _load(self, options: Any, share: crew.Share) -> Player | ClosedLoop:
        run = options.request_ids or Path(options.records).stem
        traffic, closed = self._traffic, self._traffic.closed
        if closed is None:
            numbers = share_of(traffic, share.index, share.workers)
            records = records_of(traffic, numbers, run, options)
            records.worker[:] = share.index
            return Player(records, client_batch=options.client_batch, cap=options.cap)
        users = closed.users // share.workers + (share.index < closed.users % share.workers)
        rng = np.random.default_rng([options.seed, share.index])
        think_ms = (lambda: closed.think_ms(rng)) if closed.mean_ms else None
        describe = partial(closed_records_of, traffic, share, run, options)
        return ClosedLoop(users, think_ms, closed.seconds, describe)

    def _keep(self, options: Any, share: crew.Share, load: Player | ClosedLoop, cpu_s: float) -> None:
        path = Path(options.records)
        if share.workers > 1:
            path = path.with_name(f"{path.stem}-{share.index}{path.suffix}")
        records = load.records
        write_records(records, path)
        summary = summary_of(options, self._traffic, records, {**load.facts(), "generator_cpu_s": cpu_s})
        if not crew.report(self.environment, share, summary, path):
            write_json(path.with_suffix(".json"), summary)

    def _give_up(self, error: TritonbatchError) -> None:
        if hasattr(self, "_client"):
            self._client.close()
        summary = {"error": str(error), "exit_code": error.exit_code}
        if not crew.report(self.environment, crew.Share(0, 1, 0), summary, None):
            end(self.environment, error.exit_code, str(error))
