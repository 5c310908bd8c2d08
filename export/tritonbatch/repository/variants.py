"""Variants are pure functions from one ModelConfig to another; each is served from ``configs/<variant>.pbtxt``.

- serial: max_batch_size 1 and no scheduler. Every request is its own execution, first come, first served.
- static: no scheduler, max_batch_size B. The caller forms batches of exactly B and pads the last one; the server
  takes each as one execution. Work of N requests is ceil(N/B) * t(B).
- dynamic: Triton's batcher. A batch leaves when an instance is free (delay 0), or when a preferred size is reached
  or the oldest request has waited the delay (delay > 0).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput

WHY: Mapping[str, str] = {
    "serial": "serial: one request per execution; the baseline, and right where batching does not help.",
    "static": "static: the caller sends full batches of max_batch_size; for offline work that can wait.",
    "dynamic": "dynamic: Triton forms batches from the requests that wait; for online traffic.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """The dynamic batcher's settings.

    The default delay is 0: an idle instance never waits, and while it is busy requests gather by themselves. A delay
    above 0 holds a lone request for all of it even when the instance is idle.
    """

    preferred_batch_sizes: Sequence[int] = ()
    max_queue_delay_us: int = 0


def serial(config: ModelConfig) -> ModelConfig:
    """*config* with max_batch_size 1 and no scheduler."""
    changed = _copy(config)
    changed.ClearField("dynamic_batching")
    changed.max_batch_size = 1
    return changed


def static(config: ModelConfig, batch_size: int) -> ModelConfig:
    """*config* with max_batch_size *batch_size* and no scheduler."""
    _check_batch("static batch size", batch_size, config.max_batch_size)
    changed = _copy(config)
    changed.ClearField("dynamic_batching")
    changed.max_batch_size = batch_size
    return changed


def dynamic(config: ModelConfig, batching: DynamicBatching) -> ModelConfig:
    """*config* with the dynamic batcher; preferred sizes are written sorted and once each.

    Raises:
        InvalidInput: a preferred size outside 1..max_batch_size, which Triton refuses to load.
    """
    changed = _copy(config)
    changed.ClearField("dynamic_batching")
    changed.dynamic_batching.SetInParent()
    for size in sorted(set(batching.preferred_batch_sizes)):
        _check_batch("preferred batch size", size, config.max_batch_size)
        changed.dynamic_batching.preferred_batch_size.append(size)
    if batching.max_queue_delay_us < 0:
        raise InvalidInput(f"The queue delay is {batching.max_queue_delay_us} µs: expected 0 or more.")
    changed.dynamic_batching.max_queue_delay_microseconds = batching.max_queue_delay_us
    return changed


def standard_variants(config: ModelConfig, static_batch: int, batching: DynamicBatching) -> dict[str, ModelConfig]:
    """The three variants that a comparison drives, by name."""
    return {
        "serial": serial(config),
        "static": static(config, static_batch),
        "dynamic": dynamic(config, batching),
    }


def _copy(config: ModelConfig) -> ModelConfig:
    changed = ModelConfig()
    changed.CopyFrom(config)
    return changed


def _check_batch(what: str, size: int, largest: int) -> None:
    if not 1 <= size <= largest:
        raise InvalidInput(f"The {what} is {size}: expected 1 to {largest} (max_batch_size); lower it or raise that.")
