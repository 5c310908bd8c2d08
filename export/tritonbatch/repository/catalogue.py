"""Variants by name, and what goes on top of all of them: from what a person asks for to configurations."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.priority import Priority, QueuePolicy, priority, queue_policy
from tritonbatch.repository.settings import response_cache
from tritonbatch.repository.two_instances import interactive
from tritonbatch.repository.variants import STATIC_B, DynamicBatching, dynamic, offline, online, serial, static
from tritonbatch.repository.warmup import warm_up

STANDARD = ("serial", "static", "dynamic")
TWO_INSTANCES = "two-instances"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The numbers that variants take, and what every variant gets on top."""

    static_batch: int
    dynamic: DynamicBatching = field(default_factory=DynamicBatching)
    priority: Priority = field(default_factory=Priority)
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    cache: bool = False
    warm_up: bool = False


_MAKE: Mapping[str, Callable[[ModelConfig, Settings], ModelConfig]] = {
    "serial": lambda config, _: serial(config),
    "static": lambda config, settings: static(config, settings.static_batch),
    "dynamic": lambda config, settings: dynamic(config, settings.dynamic),
    "online": lambda config, _: online(config),
    "offline": lambda config, _: offline(config),
    "priority": lambda config, settings: priority(config, settings.dynamic, settings.priority),
    TWO_INSTANCES: lambda config, _: interactive(config),
}
NAMES = tuple(_MAKE)


def variant_named(name: str, config: ModelConfig, settings: Settings) -> ModelConfig:
    """The variant *name* of *config*, without what goes on top.

    Raises:
        InvalidInput: no variant has that name, or a number is out of range for *config*.
    """
    if found := STATIC_B.fullmatch(name):
        return static(config, int(found[1]))
    if name not in _MAKE:
        raise InvalidInput(
            f"No variant is named {name!r}: expected one of {', '.join(NAMES)}, or static-B such as static-32."
        )
    return _MAKE[name](config, settings)


def variants_named(names: Sequence[str], config: ModelConfig, settings: Settings) -> dict[str, ModelConfig]:
    """The variants *names* of *config*, complete.

    Raises:
        InvalidInput: as ``variant_named``.
    """
    return {name: completed(variant_named(name, config, settings), settings) for name in names}


def completed(config: ModelConfig, settings: Settings) -> ModelConfig:
    """*config* with the queue policy where it has a batcher without one, the cache and the warm-up of *settings*."""
    has_policy = config.dynamic_batching.HasField("default_queue_policy")
    if settings.queue != QueuePolicy() and config.HasField("dynamic_batching") and not has_policy:
        config = queue_policy(config, settings.queue)
    if settings.cache:
        config = response_cache(config)
    # Last, because it warms up the sizes that all the others decided.
    return warm_up(config) if settings.warm_up else config
