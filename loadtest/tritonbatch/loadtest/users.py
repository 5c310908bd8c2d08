"""Users for anyone's locustfile: what Locust lacks for inference servers, in five lines.

    from locust import constant, task
    from tritonbatch.loadtest.users import TritonHttpUser


    class Ranking(TritonHttpUser):
        model, samples, batch_sizes, wait_time = "ranking_mlp", "rows.npz", {1: 0.8, 8: 0.2}, constant(0)

        @task
        def rank(self) -> None:
            self.infer()

These are Locust's own users: each waits for its answer (a closed loop), fires Locust's events, and does whatever its
tasks say. For an arrival rate that does not wait for the server, use
:class:`~tritonbatch.loadtest.user.OpenLoopUser`.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import numpy.typing as npt
from gevent import GreenletExit
from locust import User
from locust.user.task import LOCUST_STATE_STOPPING, LOCUST_STATE_WAITING

from tritonbatch.client import Answer, Client, Options, Protocol
from tritonbatch.errors import InvalidInput, RequestFailed, TritonbatchError
from tritonbatch.loadtest.locust_stats import METHOD
from tritonbatch.loadtest.samples import Make, sample_batches
from tritonbatch.loadtest.senders import prepare_grpc
from tritonbatch.loadtest.user import end

_numbers = itertools.count()


class _TritonUser(User):
    """What both have in common: *model* is what to ask, with inputs from *samples*.

    *samples* is an .npz or .jsonl file, a function of a random generator and a number of rows, or None for made-up
    values; *batch_sizes* and *priorities* give each value its weight.
    """

    abstract = True
    protocol: ClassVar[Protocol]
    model = ""
    samples: str | Path | Make | None = None
    batch_sizes: ClassVar[Mapping[int, float]] = {1: 1.0}
    priorities: ClassVar[Mapping[int, float]] = {0: 1.0}
    timeout_s = 60.0

    def on_start(self) -> None:
        """Connect and prepare the inputs; a mistake ends the run with one sentence."""
        self._rng = np.random.default_rng([getattr(self.environment.runner, "worker_index", 0) + 1, next(_numbers)])
        try:
            self._prepare()
        except TritonbatchError as error:
            end(self.environment, error.exit_code, str(error))
            raise GreenletExit from error  # StopUser would be logged with a traceback

    def stop(self, force: bool = False) -> bool:  # noqa: FBT001, FBT002 - Locust's signature
        """Stop as Locust does, but send no more: it kills a user whose wait has just ended within the next request."""
        waiting = self._state == LOCUST_STATE_WAITING
        if waiting:
            self._state = LOCUST_STATE_STOPPING
        return bool(super().stop(force or waiting))

    def on_stop(self) -> None:
        """Close the connection."""
        if hasattr(self, "triton"):
            self.triton.close()

    def _prepare(self) -> None:
        if not self.model:
            raise InvalidInput(f"{type(self).__name__} names no model: expected model = 'NAME', one that is loaded.")
        _check_weights(type(self).__name__, "batch_sizes", self.batch_sizes, least=1)
        _check_weights(type(self).__name__, "priorities", self.priorities, least=0)
        prepare_grpc(self.protocol)
        host = str(self.host or self.environment.host or "").removeprefix("http://").rstrip("/")
        self.triton = Client(host, protocol=self.protocol, timeout_s=self.timeout_s, retry=None)
        samples = type(self).samples  # from the instance, a function would come as a method
        source = Path(samples) if isinstance(samples, str) else samples
        self._inputs = {rows: sample_batches(self.triton, self.model, rows, source) for rows in self.batch_sizes}
        for batches in self._inputs.values():
            self.triton.request(self.model, batches[0])  # what does not fit the model is said now, not in every request

    def infer(
        self,
        inputs: Mapping[str, npt.ArrayLike] | None = None,
        *,
        model: str = "",
        name: str = "",
        options: Options | None = None,
    ) -> Answer | None:
        """Send one request and tell Locust of it; None when it failed, which Locust counts as a failure.

        Without *inputs* the next sample is sent, in one of the ``batch_sizes``; without *options* with one of the
        ``priorities``. *name* is what Locust's table calls it; the model by default.
        """
        asked = model or self.model
        if inputs is None:
            choices = self._inputs[self._drawn(self.batch_sizes)]
            inputs = choices[self._rng.integers(len(choices))]
        chosen = Options(priority=self._drawn(self.priorities)) if options is None else options
        answer, failure, rows = None, None, 0
        began = time.perf_counter()
        try:
            request = self.triton.request(asked, inputs, options=chosen)
            rows = request.rows
            answer = self.triton.send(request)
        except RequestFailed as error:
            failure = error
        self.environment.events.request.fire(
            request_type=METHOD,
            name=name or asked,
            response_time=(time.perf_counter() - began) * 1000,
            response_length=rows,
            response=answer,
            context={**self.context(), "priority": chosen.priority, "rows": rows},
            exception=failure,
        )
        return answer

    def _drawn(self, weights: Mapping[int, float]) -> int:
        if len(weights) == 1:
            return next(iter(weights))
        shares = np.array(list(weights.values()), np.float64)
        return int(self._rng.choice(list(weights), p=shares / shares.sum()))


def _check_weights(user: str, name: str, weights: Mapping[int, float], least: int) -> None:
    sound = isinstance(weights, Mapping) and weights and all(0 < weight < math.inf for weight in weights.values())
    if not sound or not all(type(value) is int and value >= least for value in weights):
        raise InvalidInput(
            f"{user} has {name} = {weights!r}: expected integers from {least} on with weights above 0, as {{1: 1.0}}."
        )


class TritonHttpUser(_TritonUser):
    """A user over HTTP."""

    abstract = True
    protocol = "http"


class TritonGrpcUser(_TritonUser):
    """A user over gRPC, which waits in gevent's hub: no stall, no lost request, and it stops when it is told to."""

    abstract = True
    protocol = "grpc"
