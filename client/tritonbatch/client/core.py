"""The pipeline that both clients share: learn the model, check, write, choose an endpoint, send, retry, understand.

Written once, as coroutines over a :class:`~tritonbatch.client.transport.Transport`; ``client.py`` runs them to their
end on the spot, ``async_client.py`` awaits them.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any, NamedTuple, TypeVar

import numpy as np
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelMetadataResponse, ModelStatistics, ServerMetadataResponse

from tritonbatch.client.contract import Contract, check_options, contract
from tritonbatch.client.counters import summed
from tritonbatch.client.endpoints import Balancer, Endpoint
from tritonbatch.client.errors import (
    FOREIGN,
    MALFORMED,
    Cancelled,
    InvalidRequest,
    ServerError,
    TimedOut,
    TryAgain,
    Unreachable,
    translated,
)
from tritonbatch.client.forks import watch_forks
from tritonbatch.client.message import Answer, Call, Language, Reply, Request
from tritonbatch.client.options import Options, Retry, seconds
from tritonbatch.client.retry import RetryBudget, wait_before_retry
from tritonbatch.client.tensors import Array, Inputs, checked
from tritonbatch.client.tracing import Tracer, traced
from tritonbatch.client.transport import Hedge, Transport
from tritonbatch.errors import InvalidInput, RequestFailed

log = logging.getLogger("tritonbatch.client")

T = TypeVar("T")

KEPT_TEMPLATES = 1024
SETTLE_S = 0.05
SETTLE_READINGS = 20
NO_HEADERS: Mapping[str, str] = {}


class _Template(NamedTuple):
    """What requests of one signature have in common."""

    rows: int
    writer: Any
    takes_queue_timeout: bool
    repeatable: bool


class Core:
    """What a client knows and does; *transport* decides how, blocking or not."""

    def __init__(
        self,
        addresses: Sequence[str],
        language: Language,
        transport: Transport,
        timeout_s: float,
        retry: Retry,
        tracer: Tracer | None,
    ) -> None:
        if not isinstance(retry, Retry):
            raise InvalidInput(f"retry is {retry!r}: expected a Retry(…), or None to send everything once.")
        self.transport = transport
        self.timeout_s = seconds(timeout_s)
        self.language = language
        self.balancer = Balancer(addresses)
        self._retry = retry
        self._budget = RetryBudget(retry.budget_ratio)
        self._rng = random.Random()  # noqa: S311 - it spreads retries, nothing is secret
        self._tracer = tracer
        self._contracts: dict[tuple[str, str], Contract] = {}
        self._templates: dict[Any, _Template] = {}
        watch_forks(self)

    def forked(self) -> None:
        """In a child of this process: share no connection and no lock with the parent."""
        self.balancer.forked()
        self._budget.forked()
        self.transport.forked()

    async def ready(self, model: str, version: str) -> bool:
        """Whether any endpoint answers that it (and *model*, when given) is ready."""
        _check_names(model, version)
        what = "model_ready" if model else "server_ready"
        call, until = self.language.ask(what, model, version), self.deadline(None)
        endpoints = self.balancer.endpoints
        for others, endpoint in zip(range(len(endpoints), 0, -1), endpoints, strict=True):
            share_s = (until - time.monotonic()) / others
            try:
                if self.language.understand(what, await self._exchange(endpoint.address, call, share_s, model)):
                    return True
            except RequestFailed:
                continue
        return False

    async def server_metadata(self) -> ServerMetadataResponse:
        """The server's name, version and extensions."""
        return await self._ask("server_metadata")

    async def metadata(self, model: str, version: str, deadline: float | None = None) -> ModelMetadataResponse:
        """The model's inputs and outputs as they travel."""
        return await self._ask("metadata", model, version, deadline)

    async def config(self, model: str, version: str, deadline: float | None = None) -> ModelConfig:
        """The configuration as the server completed it."""
        return await self._ask("config", model, version, deadline)

    async def statistics(self, model: str, version: str) -> ModelStatistics:
        """The counters of the newest served version, summed over the endpoints that answer."""
        return summed(list((await self.statistics_by_address(model, version)).values()))

    async def statistics_by_address(self, model: str, version: str) -> dict[str, ModelStatistics]:
        """The same for each endpoint that answers; the first one's failure when none does."""
        _check_names(model, version, needed=True)
        call, until = self.language.ask("statistics", model, version), self.deadline(None)
        found, failures, endpoints = {}, [], self.balancer.endpoints
        for others, endpoint in zip(range(len(endpoints), 0, -1), endpoints, strict=True):
            share_s = (until - time.monotonic()) / others
            try:
                reply = await self._ask_one(endpoint.address, call, "statistics", model, share_s)
                found[endpoint.address] = _newest(model, reply.model_stats)
            except RequestFailed as failure:
                failures.append(failure)
        if not found:
            raise failures[0]
        return found

    async def settled_statistics(self, model: str) -> ModelStatistics:
        """The statistics once two readings agree, or after a second the last one."""
        last = await self.statistics(model, "")
        for _ in range(SETTLE_READINGS):
            await self.transport.sleep(SETTLE_S)
            now = await self.statistics(model, "")
            if now == last:
                break
            last = now
        return last

    async def load(self, model: str, config: ModelConfig | None, timeout_s: float) -> None:
        """Load *model* on every endpoint."""
        if config is not None and not isinstance(config, ModelConfig):
            raise InvalidInput(
                f"The config is a {type(config).__name__}: expected tritonclient's ModelConfig, or None."
            )
        await self._change("load", model, config, timeout_s)

    async def unload(self, model: str, timeout_s: float) -> None:
        """Unload *model* on every endpoint."""
        await self._change("unload", model, None, timeout_s)

    async def _change(self, what: str, model: str, config: ModelConfig | None, timeout_s: float) -> None:
        try:
            await self._ask_all(what, model, body=config, timeout_s=timeout_s)
        finally:
            self.forget(model)  # last, so that no request of the meantime has learnt the old one again

    async def contract(self, model: str, version: str, deadline: float | None = None) -> Contract:
        """What the model declares, asked for once."""
        _check_names(model, version, needed=True)
        known = self._contracts.get((model, version))
        if known is None:
            metadata = await self.metadata(model, version, deadline)
            known = contract(metadata, await self.config(model, version, deadline))
            self._contracts[model, version] = known
        return known

    def forget(self, model: str) -> None:
        """Ask again what *model* declares: it was, or may have been, replaced."""
        for known in (self._contracts, self._templates):
            for key in list(known):  # at once: other threads add and forget as well
                if key[0] == model:
                    known.pop(key, None)

    async def request(
        self, model: str, inputs: Inputs, options: Options, *, add_batch_axis: bool = False, keep: bool = True
    ) -> Request:
        """Check *inputs* and write them; with *keep* later changes of the arrays do not show."""
        if not add_batch_axis:
            ready = self._from_template(model, inputs, options, keep=keep)
            if ready is not None:
                return ready
        known = await self.contract(model, _version(options))
        rows, arrays = checked(known, inputs, add_batch_axis=add_batch_axis)
        check_options(known, options)
        writer = self.language.writer(arrays, model, options)
        template = _Template(rows, writer, known.takes_queue_timeout(options.priority), not known.stateful)
        # Only what goes out as it came in: converted arrays need the check every time, and texts vary in size.
        if not add_batch_axis and all(arrays[name] is array for name, array in inputs.items()):
            self._keep(_signature(model, inputs, options), template)
        return self._bound(template, model, tuple(arrays.values()), options, keep=keep)

    def _from_template(self, model: str, inputs: Inputs, options: Options, *, keep: bool) -> Request | None:
        """The hot path: names, types and shapes that have been checked before are written without looking again."""
        try:
            template = self._templates.get(_signature(model, inputs, options))
        except (TypeError, AttributeError):  # not what it should be, which the slow way says
            return None
        if template is None:
            return None
        return self._bound(template, model, tuple(inputs.values()), options, keep=keep)  # type: ignore[arg-type]

    def _keep(self, signature: Any, template: _Template) -> None:
        if signature is None:
            return
        if len(self._templates) >= KEPT_TEMPLATES:
            self._templates.clear()
        self._templates[signature] = template

    def _bound(
        self, template: _Template, model: str, arrays: tuple[Array, ...], options: Options, *, keep: bool
    ) -> Request:
        write = self.language.bind(template.writer, arrays, keep=keep)
        return Request(model, template.rows, options, write, template.takes_queue_timeout, template.repeatable)

    def deadline(self, timeout_s: float | None) -> float:
        """When a call that begins now must have ended, in monotonic seconds; *timeout_s* None takes the client's.

        Raises:
            InvalidInput: *timeout_s* is no finite number.
        """
        return time.monotonic() + (self.timeout_s if timeout_s is None else seconds(timeout_s))

    async def infer(
        self, model: str, inputs: Inputs, options: Options, timeout_s: float | None, *, add_batch_axis: bool
    ) -> dict[str, Array]:
        """One request from arrays to arrays, within one deadline."""
        deadline = self.deadline(timeout_s)
        request = None if add_batch_axis else self._from_template(model, inputs, options, keep=False)
        if request is None:
            await self.contract(model, _version(options), deadline)
            request = await self.request(model, inputs, options, add_batch_axis=add_batch_axis, keep=False)
        answer = await self.send(request, deadline)
        arrays = answer.arrays()
        return {name: array[0] for name, array in arrays.items()} if add_batch_axis else arrays

    async def send(self, request: Request, deadline: float) -> Answer:
        """Send *request* until it is answered, its retries are spent or *deadline* (monotonic seconds) is near."""
        try:
            if self._tracer is None:
                return await self._send(request, deadline, NO_HEADERS)
            with traced(self._tracer, request) as headers:
                return await self._send(request, deadline, headers)
        except InvalidRequest:
            self.forget(request.model)  # the server knows the model otherwise than we do
            raise

    def _send(self, request: Request, deadline: float, headers: Mapping[str, str]) -> Coroutine[Any, Any, Answer]:
        def attempt(endpoint: Endpoint) -> Coroutine[Any, Any, Answer]:
            return self._attempt(endpoint, request, deadline, headers)

        hedge_after_s = self._retry.hedge_after_s
        if hedge_after_s is None or not request.repeatable:
            return self._retried(attempt, deadline, request.repeatable)
        known = self._contracts.get((request.model, request.options.version))
        hedge = Hedge(hedge_after_s, self._budget.spend, cancel=known is None or not known.delays)
        return self.transport.first(partial(self._retried, attempt, deadline), hedge)

    async def _retried(
        self,
        job: Callable[[Endpoint], Coroutine[Any, Any, T]],
        deadline: float,
        repeatable: bool = True,  # noqa: FBT001, FBT002 - a fact about the request
    ) -> T:
        for attempt in count(1):
            endpoint = self.balancer.take()
            healthy: bool | None = None  # cancelled or out of time, nothing is learnt about the endpoint
            try:
                result = await job(endpoint)
                healthy = True
            except RequestFailed as failure:
                if not isinstance(failure, (TimedOut, Cancelled)):
                    healthy = not isinstance(failure, TryAgain)
                wait_s = self._wait(failure, attempt, deadline) if repeatable else None
                if wait_s is None:
                    raise
                log.info("attempt %d: %s", attempt, failure)
            else:
                self._budget.earn()
                return result
            finally:
                self.balancer.done(endpoint, healthy=healthy)
            if not self.balancer.another_is_healthy(endpoint):
                await self.transport.sleep(wait_s)
        raise AssertionError  # count() does not end

    async def _attempt(
        self, endpoint: Endpoint, request: Request, deadline: float, headers: Mapping[str, str]
    ) -> Answer:
        left_s = deadline - time.monotonic()
        queue_timeout_us = max(1, int(left_s * 1e6)) if request.takes_queue_timeout else None
        call = request.write(queue_timeout_us, request.options.request_id, headers)
        reply = await self._exchange(endpoint.address, call, left_s, request.model)
        try:
            return self.language.answer(reply)
        except (*FOREIGN, *MALFORMED) as error:
            raise translated(error, endpoint.address, request.model) from error

    async def _exchange(self, address: str, call: Call, timeout_s: float, model: str) -> Reply:
        if timeout_s <= 0:
            raise TimedOut(f"No time was left for {address}, model {model!r}; give the call more.")
        try:
            return await self.transport.exchange(address, call, timeout_s)
        except (*FOREIGN, *MALFORMED) as error:
            raise translated(error, address, model) from error

    def _wait(self, failure: RequestFailed, attempt: int, deadline: float) -> float | None:
        wait_s = wait_before_retry(self._retry, failure, attempt, deadline - time.monotonic(), self._rng)
        return wait_s if wait_s is not None and self._budget.spend() else None

    async def ask_at(self, address: str, what: str, model: str, body: Any, timeout_s: float) -> Any:
        """Ask one endpoint something that is no inference."""
        return await self._ask_one(address, self.language.ask(what, model, "", body), what, model, timeout_s)

    async def _ask_one(self, address: str, call: Call, what: str, model: str, timeout_s: float) -> Any:
        reply = await self._exchange(address, call, timeout_s, model)
        try:
            return self.language.understand(what, reply)
        except (*FOREIGN, *MALFORMED) as error:
            raise translated(error, address, model) from error

    async def _ask(self, what: str, model: str = "", version: str = "", deadline: float | None = None) -> Any:
        """Ask whichever endpoint answers; one that is silent has no more than its share of the time."""
        _check_names(model, version, needed=what != "server_metadata")
        call, until = self.language.ask(what, model, version), self.deadline(None) if deadline is None else deadline
        others = min(len(self.balancer.endpoints), self._retry.attempts)

        async def ask(endpoint: Endpoint) -> Any:
            nonlocal others
            others, share_s = others - 1, (until - time.monotonic()) / max(others, 1)
            try:
                return await self._ask_one(endpoint.address, call, what, model, share_s)
            except TimedOut as failure:
                if others < 1:
                    raise
                raise Unreachable(f"No answer from {endpoint.address} in {share_s:.3g} s; trying another.") from failure

        return await self._retried(ask, until)

    async def _ask_all(
        self, what: str, model: str, version: str = "", body: Any = None, timeout_s: float | None = None
    ) -> list[Any]:
        _check_names(model, version, needed=True)
        call = self.language.ask(what, model, version, body)
        timeout_s = self.timeout_s if timeout_s is None else seconds(timeout_s)
        endpoints = self.balancer.endpoints
        return [await self._ask_one(endpoint.address, call, what, model, timeout_s) for endpoint in endpoints]


def _check_names(model: str, version: str, *, needed: bool = False) -> None:
    if not isinstance(model, str) or (needed and not model):
        raise InvalidInput(f"The model is {model!r}: expected its name, a text.")
    if not isinstance(version, str):
        raise InvalidInput(f"The version is {version!r}: expected text, as {str(version)!r}.")


def _version(options: Options) -> str:
    if not isinstance(options, Options):
        raise InvalidInput(f"options is {options!r}: expected Options(…).")
    return options.version


def _newest(model: str, versions: Sequence[ModelStatistics]) -> ModelStatistics:
    if not versions:
        raise ServerError(f"There are no statistics of model {model!r}; expected one entry per version.")
    return max(versions, key=lambda entry: int(entry.version))


def _signature(model: str, inputs: Inputs, options: Options) -> Any:
    """What the written form of a request depends on beside its data and id, or None when it must be written anew."""
    if options.parameters or (type(inputs) is not dict and not isinstance(inputs, Mapping)):
        return None
    parts: list[Any] = [model, options.version, options.priority, options.outputs]
    for name, array in inputs.items():
        if type(array) is not np.ndarray or array.dtype.kind in "OSU":
            return None
        parts += (name, array.dtype, array.shape)
    return tuple(parts)
