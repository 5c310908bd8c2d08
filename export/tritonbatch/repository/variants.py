"""Variants are pure functions from one ModelConfig to another; each is served from ``configs/<variant>.pbtxt``.

- serial: max_batch_size 1 and no scheduler. Every request is its own execution, first come, first served.
- static: no scheduler, max_batch_size B. The caller forms batches of exactly B and pads the last one; the server
  takes each as one execution. Work of N requests is ceil(N/B) * t(B).
- dynamic: Triton's batcher. A batch leaves when an instance is free (delay 0), or when a preferred size is reached
  or the oldest request has waited the delay (delay > 0).
- online and offline: dynamic and static with the numbers of the two usual kinds of traffic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import copied
from tritonbatch.repository.cuda_graphs import cuda_graphs, is_tensorrt

WHY: Mapping[str, str] = {
    "serial": "serial: one request per execution; the baseline, and right where batching does not help.",
    "static": "static: the caller sends full batches of max_batch_size; for offline work that can wait.",
    "dynamic": "dynamic: Triton forms batches from the requests that wait; for online traffic.",
    "static-B": "static-B: the caller sends batches of exactly B, one execution each; for offline work on a schedule.",
    "online": "online: small batches and a short deadline, whichever comes first; for users who wait for the answer.",
    "offline": "offline: the caller sends large full batches, and nobody waits for one answer; for jobs.",
    "priority": "priority: higher levels go to the head of the next batch; for mixed traffic on one model.",
    "two-instances": "two-instances: interactive half; bulk traffic has a model of its own on the same weights.",
    "two-instances-bulk": "two-instances: bulk half; large client batches, giving way to the interactive model.",
}
STATIC_B = re.compile(r"static-([1-9][0-9]*)")

ONLINE_MAX_BATCH = 8
ONLINE_DELAY_US = 50_000
OFFLINE_BATCHES = (64, 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicBatching:
    """The dynamic batcher's settings.

    The default delay is 0: an idle instance never waits, and while it is busy requests gather by themselves. A delay
    above 0 holds a lone request for all of it even when the instance is idle.
    """

    preferred_batch_sizes: Sequence[int] = ()
    max_queue_delay_us: int = 0


def why(variant: str) -> str:
    """The line on top of the file of *variant*; empty for a name that is not one of these."""
    if STATIC_B.fullmatch(variant):
        return WHY["static-B"].replace("static-B", variant, 1).replace("exactly B", f"exactly {variant[7:]}")
    return WHY.get(variant, "")


def is_static(variant: str) -> bool:
    """Whether the caller, not the server, forms the batches of the variant of that name."""
    return variant == "offline" or variant.startswith("static")


def caller_batch(variant: str, max_batch_size: int) -> int:
    """How many rows the caller of *variant* sends together: B of ``static-B``, else the limit, else 1."""
    if found := STATIC_B.fullmatch(variant):
        return int(found[1])
    return max(1, max_batch_size) if is_static(variant) else 1


def serial(config: ModelConfig) -> ModelConfig:
    """*config* with max_batch_size 1 and no scheduler."""
    changed = copied(config)
    changed.ClearField("dynamic_batching")
    changed.max_batch_size = 1
    return changed


def static(config: ModelConfig, batch_size: int) -> ModelConfig:
    """*config* with max_batch_size *batch_size* and no scheduler.

    A TensorRT engine of fixed shapes also gets a CUDA graph of exactly that batch, which every full batch then uses.
    """
    _check_batch("static batch size", batch_size, config.max_batch_size)
    changed = copied(config)
    changed.ClearField("dynamic_batching")
    changed.max_batch_size = batch_size
    if is_tensorrt(changed) and all(size > 0 for tensor in changed.input for size in tensor.dims):
        return cuda_graphs(changed, (batch_size,))
    return changed


def dynamic(config: ModelConfig, batching: DynamicBatching) -> ModelConfig:
    """*config* with the dynamic batcher; preferred sizes are written sorted and once each.

    Raises:
        InvalidInput: a preferred size outside 1..max_batch_size, which Triton refuses to load.
    """
    changed = copied(config)
    changed.ClearField("dynamic_batching")
    changed.dynamic_batching.SetInParent()
    for size in sorted(set(batching.preferred_batch_sizes)):
        _check_batch("preferred batch size", size, config.max_batch_size)
        changed.dynamic_batching.preferred_batch_size.append(size)
    if batching.max_queue_delay_us < 0:
        raise InvalidInput(f"The queue delay is {batching.max_queue_delay_us} µs: expected 0 or more.")
    changed.dynamic_batching.max_queue_delay_microseconds = batching.max_queue_delay_us
    return changed


def online(
    config: ModelConfig, *, max_batch_size: int = ONLINE_MAX_BATCH, max_queue_delay_us: int = ONLINE_DELAY_US
) -> ModelConfig:
    """*config* for people who wait: batches of at most *max_batch_size*, and no request queues longer than the delay.

    A smaller limit of *config* stays. Triton makes a lone request wait the whole delay even on an idle instance.
    """
    changed = copied(config)
    changed.max_batch_size = min(max_batch_size, config.max_batch_size)
    return dynamic(changed, DynamicBatching(max_queue_delay_us=max_queue_delay_us))


def offline(config: ModelConfig) -> ModelConfig:
    """*config* for jobs: static at the larger of 64 and 32 that fits, or at max_batch_size where neither does."""
    fitting = [size for size in OFFLINE_BATCHES if size <= config.max_batch_size]
    return static(config, fitting[0] if fitting else config.max_batch_size)


def standard_variants(config: ModelConfig, static_batch: int, batching: DynamicBatching) -> dict[str, ModelConfig]:
    """The three variants that a comparison drives, by name."""
    return {
        "serial": serial(config),
        "static": static(config, static_batch),
        "dynamic": dynamic(config, batching),
    }


def _check_batch(what: str, size: int, largest: int) -> None:
    if not 1 <= size <= largest:
        raise InvalidInput(f"The {what} is {size}: expected 1 to {largest} (max_batch_size); lower it or raise that.")
