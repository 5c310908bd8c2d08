"""The same job on Ray Data: Ray hands out numbers of parts, and each worker runs the function that writes a part."""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tritonbatch.errors import InvalidInput, NotSupported, RequestFailed, TritonbatchError
from tritonbatch.offline.job import Job, Server, Watch, sender_of
from tritonbatch.offline.parts import Part, take_part
from tritonbatch.offline.reading import read_rows
from tritonbatch.offline.run import Outlook, run_part

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reads it when it is imported; a job reports to nobody
try:
    import ray
    import ray.data
except ImportError as missing:
    raise NotSupported(
        "The engine ray needs Ray Data, which is not installed: pip install 'tritonbatch[ray]', or use --engine local."
    ) from missing

PARTS_PER_CALL = 4
WORKER_CPUS = 0.5
"""A worker mostly waits for the server; half a core also leaves room for Ray's own tasks on a machine with one."""


class PartWorker:
    """Lives in a worker process with a client of its own, and runs the parts whose numbers it is given."""

    def __init__(self, job: Job, server: Server) -> None:
        self._job = job
        self._parts = job.parts
        self._place = take_part(job.output)
        self._client = server.client()
        self._outlook = Outlook(
            contract=self._client.contract(job.model, job.version),
            sender=sender_of(job, server, self._client),
            in_flight=server.in_flight,
            output=job.output,
            form=job.form,
        )

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Run the parts *batch* names; returns the rows done, and the reason when it had to give up."""
        rows, failures = [], []
        for number in batch["part"]:
            part = self._parts[int(number)]
            try:
                source = read_rows(self._job.source, self._job.columns, part.start)
                rows.append(run_part(self._outlook, part, source, lambda _: None).rows)
                failures.append("")
            except TritonbatchError as error:
                rows.append(0)
                failures.append(str(error))
        return {"rows": np.array(rows), "failure": np.array(failures, dtype=object)}


def _anywhere(job: Job) -> Job:
    """The same job with absolute paths: a worker has another current folder."""
    files = tuple(replace(file, path=file.path.absolute()) for file in job.source.files)
    source = replace(job.source, path=job.source.path.absolute(), files=files)
    return replace(job, source=source, output=job.output.absolute())


def _connect() -> None:
    try:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError as error:
        where = os.environ.get("RAY_ADDRESS", "this machine")
        raise InvalidInput(
            f"The Ray cluster at {where} does not take the job ({error}): check its address and authentication token, "
            "or unset RAY_ADDRESS for a cluster of the job's own."
        ) from error


def run_on_ray(job: Job, server: Server, parts: Sequence[Part], watch: Watch) -> None:
    """Do *parts* on the Ray cluster that this process is connected to, or on one of its own for as long as it takes.

    Every worker needs the input and the output's folder under the same paths.

    Raises:
        InvalidInput: the cluster that RAY_ADDRESS names does not take the job.
        RequestFailed: a worker gave up; the parts that are finished remain.
    """
    started = not ray.is_initialized()
    if started:
        _connect()
    try:
        resources: dict[str, float] = ray.cluster_resources()  # type: ignore[no-untyped-call]
        workers = max(1, min(int(resources.get("CPU", 1)), len(parts)))
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        ray.data.DataContext.get_current().enable_progress_bars = False
        numbers = ray.data.from_items([{"part": part.number} for part in parts], override_num_blocks=len(parts))
        done = numbers.map_batches(
            PartWorker,
            fn_constructor_args=(_anywhere(job), server),
            batch_size=PARTS_PER_CALL,
            compute=ray.data.ActorPoolStrategy(min_size=1, max_size=workers),
            num_cpus=WORKER_CPUS,
        )
        for row in done.iter_rows():
            if row["failure"]:
                raise RequestFailed(row["failure"])
            watch.advance(int(row["rows"]))
    finally:
        if started:
            ray.shutdown()
