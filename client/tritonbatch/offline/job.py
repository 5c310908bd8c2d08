"""A job from its arguments to its output: planned and checked first, then part by part, then put together."""

from __future__ import annotations

import filecmp
import shutil
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tritonbatch.client import Client, InvalidRequest, Protocol, ServerError, TimedOut, TryAgain
from tritonbatch.errors import InvalidInput, RequestFailed
from tritonbatch.offline.columns import columns_of, probe
from tritonbatch.offline.parts import (
    Part,
    alone_at_work,
    batches_per_part,
    claim,
    finished,
    part_file,
    split,
    work_folder,
)
from tritonbatch.offline.reading import Columns, read_rows
from tritonbatch.offline.run import Outlook, run_part
from tritonbatch.offline.sending import Sender, send, wait
from tritonbatch.offline.shaping import Item
from tritonbatch.offline.source import Source, kind_of, open_source
from tritonbatch.offline.writing import Layout, assemble, layout

MEASURED_ITEMS = 10
MEASURED_EXECUTIONS = 3

Engine = Literal["local", "ray"]


@dataclass(frozen=True, slots=True)
class Server:
    """Where the model answers and how it is asked: *in_flight* batches at once, waited for up to *patience_s*."""

    urls: tuple[str, ...]
    protocol: Protocol = "http"
    in_flight: int = 2
    patience_s: float = 300.0

    def client(self) -> Client:
        """A client that sends everything once: what is repeated, and when, is decided here."""
        return Client(self.urls, protocol=self.protocol, timeout_s=self.patience_s, retry=None)


@dataclass(frozen=True, slots=True)
class Job:
    """What is to be done, as plain values that travel to any worker."""

    source: Source
    columns: Columns
    output: Path
    form: Layout
    model: str
    version: str
    batch: int
    part_rows: int

    @property
    def parts(self) -> tuple[Part, ...]:
        """The ranges of rows that it is done in."""
        return split(self.source.rows, self.part_rows)

    @property
    def missing(self) -> tuple[Part, ...]:
        """The parts that are not finished yet."""
        return tuple(part for part in self.parts if finished(self.output, part) is None)

    def manifest(self) -> dict[str, Any]:
        """What makes it this job and no other."""
        return {
            "files": [file.fingerprint for file in self.source.files],
            "model": self.model,
            "version": self.version,
            "batch": self.batch,
            "part_rows": self.part_rows,
            "columns": self.columns.inputs,
            "ids": self.columns.ids,
            "outputs": [(each.name, each.datatype, each.shape) for each in self.form.outputs],
        }


@dataclass(frozen=True, slots=True)
class Estimate:
    """What a job has before it: *rows* of *of_rows* are missing, in *batches* of *batch_s* seconds each."""

    rows: int
    of_rows: int
    batches: int
    batch_s: float


@dataclass(frozen=True, slots=True)
class Watch:
    """Who is told what: the estimate before it starts, the rows that are done, why it waits for the server."""

    planned: Callable[[Estimate], None] = lambda _: None
    advance: Callable[[int], None] = lambda _: None
    waiting: Callable[[str], None] = lambda _: None


@dataclass(frozen=True, slots=True)
class Summary:
    """What has become of the rows; *errors* of them are in *errors_file*, the others in the output."""

    rows: int
    errors: int
    errors_file: Path


NOBODY = Watch()


def plan(client: Client, source: Path, output: Path, model: str, batch: int) -> tuple[Job, list[Item]]:
    """Look at everything that can be wrong before anything is computed; also returns some items that fit the model.

    Raises:
        InvalidInput: the input, the output or the batch size cannot be right for the model.
        RequestFailed: the server does not answer, or has no such model.
    """
    kind = kind_of(output, "output")
    if not output.parent.is_dir():
        raise InvalidInput(f"There is no folder {output.parent} for the output: make it, or name another place.")
    if output.is_dir():
        raise InvalidInput(f"The output {output} is a folder: expected the name of a file.")
    opened = open_source(source)
    if (
        output.resolve() in {file.path.resolve() for file in opened.files}
        or source.resolve() == output.parent.resolve()
    ):
        raise InvalidInput(f"The output {output} is in the input {source}: name another place for it.")
    version = max(client.metadata(model).versions, key=int, default="")
    contract = client.contract(model, version)
    if not 1 <= batch <= contract.max_batch_size:
        raise InvalidInput(
            f"The batch is {batch}: expected 1 to {contract.max_batch_size}, the max_batch_size of {model}"
            f"{'' if contract.max_batch_size else ', which takes no batches; set one in its configuration'}."
        )
    columns = columns_of(opened, contract)
    form = layout(kind, columns.ids, contract)
    part_rows = batch * batches_per_part(batch, form.outputs)
    job = Job(opened, columns, output, form, model, version, batch, part_rows)
    return job, probe(opened, columns, contract)


def run(job: Job, sample: Sequence[Item], server: Server, watch: Watch = NOBODY, engine: Engine = "local") -> Summary:
    """Do what is missing of *job*, put the output in place, and remove the work folder.

    Raises:
        InvalidInput: the work folder holds another job, or another run is at it.
        NotSupported: the engine is not installed.
        RequestFailed: the server was away for longer than the patience; the finished parts remain.
    """
    if engine == "ray":
        from tritonbatch.offline.ray_engine import run_on_ray  # noqa: PLC0415 - Ray is optional, and heavy
    with alone_at_work(job.output):
        claim(job.output, job.manifest())
        missing = job.missing
        if missing:
            with server.client() as client:
                contract = client.contract(job.model, job.version)
                sender = sender_of(job, server, client, watch)
                rows = sum(part.rows for part in missing)
                batches = sum(-(-part.rows // job.batch) for part in missing)
                watch.planned(Estimate(rows, job.source.rows, batches, measure(sender, sample)))
                if engine == "local":
                    run_here(job, Outlook(contract, sender, server.in_flight, job.output, job.form), missing, watch)
            if engine == "ray":
                run_on_ray(job, server, missing, watch)
        return put_together(job)


def sender_of(job: Job, server: Server, client: Client, watch: Watch = NOBODY) -> Sender:
    """How the batches of *job* get to *server*."""
    return Sender(
        client=client,
        model=job.model,
        version=job.version,
        batch=job.batch,
        patience_s=server.patience_s,
        folder=work_folder(job.output),
        waiting=watch.waiting,
    )


def measure(sender: Sender, sample: Sequence[Item]) -> float:
    """Seconds that one full batch takes, from a few executions of one item in every row, after one to warm up.

    Raises:
        RequestFailed: the server fails on every item that was tried.
    """
    failure = RequestFailed("There was no item to measure with.")
    for item in sample[:MEASURED_ITEMS]:
        try:
            send(sender, [item])
            return statistics.median(_timed(sender, item) for _ in range(MEASURED_EXECUTIONS))
        except (InvalidRequest, ServerError) as error:
            failure = error
        except (TryAgain, TimedOut) as error:
            failure = error
            wait(sender, error, time.monotonic() + sender.patience_s)
    raise failure


def _timed(sender: Sender, item: Item) -> float:
    start = time.perf_counter()
    send(sender, [item])
    return time.perf_counter() - start


def run_here(job: Job, outlook: Outlook, parts: Sequence[Part], watch: Watch) -> None:
    """Do *parts* one after the other in this process; neighbours share one pass over the input."""
    rows, at = read_rows(job.source, job.columns), 0
    for part in parts:
        if part.start != at:
            rows = read_rows(job.source, job.columns, part.start)
        run_part(outlook, part, rows, watch.advance)
        at = part.stop


def put_together(job: Job) -> Summary:
    """Make the output, and the file of errors if there are any, of all parts; then remove the work folder.

    A differing file that was in their place is kept as ``.bak``.
    """
    entries = [(part, finished(job.output, part)) for part in job.parts]
    if lost := [part.number for part, entry in entries if entry is None]:
        raise InvalidInput(f"Part {lost[0]} in {work_folder(job.output)} was changed: run again to compute it anew.")
    # Made in the work folder, so that what a killed run leaves of it goes with the folder.
    whole, errors_file = work_folder(job.output) / "assembled", job.output.with_name(f"{job.output.name}.errors.jsonl")
    errors = sum(entry.errors for _, entry in entries if entry)
    assemble([part_file(job.output, part, ".errors.jsonl") for part in job.parts], whole, _ERRORS, errors)
    if errors:
        _publish(whole, errors_file)
    elif errors_file.exists():
        errors_file.replace(errors_file.with_name(f"{errors_file.name}.bak"))
    files = [part_file(job.output, part, job.output.suffix) for part in job.parts]
    assemble(files, whole, job.form, job.source.rows)
    _publish(whole, job.output)
    shutil.rmtree(work_folder(job.output))
    return Summary(job.source.rows, errors, errors_file)


_ERRORS = Layout("jsonl", "row", ())


def _publish(made: Path, place: Path) -> None:
    if place.exists() and not filecmp.cmp(made, place, shallow=False):
        place.replace(place.with_name(f"{place.name}.bak"))
    made.replace(place)
