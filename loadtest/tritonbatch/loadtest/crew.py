"""One schedule over several Locust processes: who plays which part of it, when it starts, and when all have ended.

Locust's master and workers share out users; a schedule has none to share. So each worker says when it has prepared its
requests, the master then tells all of them their share and one moment to start, and ends the run when every worker has
reported, or is lost. A run in a single process is a crew of one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gevent
from gevent.event import AsyncResult
from locust.runners import STATE_MISSING, MasterRunner, WorkerRunner

from tritonbatch.errors import TritonbatchError

READY, GO, DONE = "tritonbatch_ready", "tritonbatch_go", "tritonbatch_done"
LEAD_NS = 500_000_000
"""How far in the future the start is, so that every worker has heard of it."""
READY_S = 120.0
LOCAL_HOSTS = {"127.0.0.1", "localhost", "::1"}


@dataclass(frozen=True, slots=True)
class Share:
    """Part *index* of *workers*, starting at *start_ns* of this process's ``time.perf_counter_ns``."""

    index: int
    workers: int
    start_ns: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What all workers reported, by index, and how many were lost."""

    summaries: dict[int, dict[str, Any]]
    lost: int


def wait_for_share(environment: Any) -> Share:
    """Say that this process is prepared, and wait for its share.

    Raises:
        TritonbatchError: the other workers were not ready in time.
    """
    runner = environment.runner
    if not isinstance(runner, WorkerRunner):
        return Share(0, 1, time.perf_counter_ns())
    environment.tritonbatch_go = AsyncResult()  # a run before this one may have had its own
    runner.send_message(READY, None)
    try:
        go: dict[str, Any] = _go_of(environment).get(timeout=READY_S + 10)  # type: ignore[assignment]
    except gevent.Timeout as error:
        raise TritonbatchError("The other workers were not ready in time: give --users as many as workers.") from error
    until_start_ns = go["start_wall_ns"] - time.time_ns()
    return Share(go["order"].index(runner.client_id), len(go["order"]), time.perf_counter_ns() + until_start_ns)


def report(environment: Any, share: Share, summary: dict[str, Any], records: Path | None) -> bool:
    """Tell the master how it went, with the *records* where it is on another machine; False when there is no master."""
    runner = environment.runner
    if not isinstance(runner, WorkerRunner):
        return False
    ship = records is not None and records.exists() and runner.master_host not in LOCAL_HOSTS
    content = records.read_bytes() if ship and records is not None else b""
    name = records.name if records is not None else ""
    runner.send_message(DONE, {"index": share.index, "summary": summary, "name": name, "content": content})
    return True


def enlist(environment: Any, folder: Path, finish: Callable[[Outcome], None]) -> None:
    """Take part: as a worker listen for the share; as the master wait for all, then call *finish* with the outcome."""
    runner = environment.runner
    if isinstance(runner, WorkerRunner):
        environment.tritonbatch_go = AsyncResult()
        runner.register_message(GO, lambda environment, msg: _go_of(environment).set(msg.data))
    elif isinstance(runner, MasterRunner):
        _Lead(environment, folder, finish)


def _go_of(environment: Any) -> AsyncResult[dict[str, Any]]:
    go: AsyncResult[dict[str, Any]] = environment.tritonbatch_go
    return go


class _Lead:
    """The master's part."""

    def __init__(self, environment: Any, folder: Path, finish: Callable[[Outcome], None]) -> None:
        self._runner: Any = environment.runner
        self._folder = folder
        self._finish = finish
        self._known: set[str] = set()
        self._ready: list[str] = []
        self._done: dict[str, tuple[int, dict[str, Any]]] = {}
        self._runner.register_message(READY, self._hear_ready)
        self._runner.register_message(DONE, self._hear_done)
        environment.events.test_start.add_listener(self._begin)

    def _begin(self, **_: Any) -> None:
        self._ready, self._done = [], {}
        gevent.spawn(self._lead)

    def _hear_ready(self, environment: Any, msg: Any) -> None:  # noqa: ARG002 - Locust's signature
        self._ready.append(msg.node_id)

    def _hear_done(self, environment: Any, msg: Any) -> None:  # noqa: ARG002
        if msg.data["content"]:
            self._folder.mkdir(parents=True, exist_ok=True)
            (self._folder / Path(msg.data["name"]).name).write_bytes(msg.data["content"])
        self._done[msg.node_id] = (msg.data["index"], msg.data["summary"])

    def _lead(self) -> None:
        workers = {id_ for id_, client in self._runner.clients.items() if client.state != STATE_MISSING}
        self._known = workers
        if self._runner.target_user_count < len(workers):
            users = f"{self._runner.target_user_count} users for {len(workers)} workers"
            self._finish(Outcome({0: {"error": f"There are {users}: give --users {len(workers)} or more."}}, 0))
            return
        deadline = time.monotonic() + READY_S
        while not (self._failed() or workers <= self._ended(self._ready)) and time.monotonic() < deadline:
            gevent.sleep(0.02)
        order = [id_ for id_ in self._ready if id_ in workers]
        if len(order) < len(workers) or self._failed():
            missing = len(workers) - len(order)
            sentence = f"{missing} of {len(workers)} workers did not get ready within {READY_S:.0f} s."
            summary = {"error": sentence}
            self._finish(Outcome(self._summaries() or {0: summary}, missing))
            return
        self._runner.send_message(GO, {"order": order, "start_wall_ns": time.time_ns() + LEAD_NS})
        while not workers <= self._ended(self._done):
            gevent.sleep(0.1)
        self._finish(Outcome(self._summaries(), len(workers - self._done.keys())))

    def _ended(self, those: Iterable[str]) -> set[str]:
        """*those*, and every worker that is lost: it missed its heartbeats, or has gone."""
        clients = self._runner.clients
        return {*those, *(id_ for id_ in self._known if id_ not in clients or clients[id_].state == STATE_MISSING)}

    def _failed(self) -> bool:
        return any("error" in summary for _, summary in self._done.values())

    def _summaries(self) -> dict[int, dict[str, Any]]:
        return dict(self._done.values())
