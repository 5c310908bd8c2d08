"""Defaults for a GPU: how far batching can help on it, and how much of that its memory holds.

The knee. A layer of W weights in FP16 reads 2 * W bytes whatever the batch, and computes 2 * W operations for each
row; so an execution is bound by reading until B = peak operations / memory bandwidth, and takes longer in proportion
beyond. The largest power of two below that is where more batch stops helping; it is the largest batch by default.

Memory. A fifth stays free for libraries and fragmentation, and the CUDA context takes its part. Each instance holds
its own weights, and an arena that grows by doubling, so up to twice the activations of its largest batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import copied
from tritonbatch.repository.settings import on_gpus
from tritonbatch.repository.variants import OFFLINE_BATCHES, DynamicBatching, dynamic

MIB = 2**20
USABLE_SHARE = 0.8
CONTEXT_MIB = 512  # what an idle CUDA process with cuBLAS and cuDNN takes, roughly
ARENA_GROWTH = 2  # ONNX Runtime's arena_extend_strategy kNextPowerOfTwo
INSTANCES = 2  # Triton's optimization guide: one instance copies while the other computes


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU by NVIDIA's data sheet: dense FP16 tensor throughput (without sparsity), bandwidth and smallest memory."""

    fp16_tflops: float
    bandwidth_gb_per_s: float
    memory_mib: int


GPUS: Mapping[str, Gpu] = {
    "V100": Gpu(125, 900, 16_384),
    "T4": Gpu(65, 320, 15_360),
    "A10": Gpu(125, 600, 23_028),
    "A10G": Gpu(70, 600, 23_028),
    "A30": Gpu(165, 933, 24_576),
    "A40": Gpu(150, 696, 46_068),
    "A100": Gpu(312, 1_555, 40_960),
    "L4": Gpu(121, 300, 23_034),
    "L40S": Gpu(362, 864, 46_068),
    "H100": Gpu(989, 3_350, 81_559),
    "H200": Gpu(989, 4_800, 143_771),
    "B200": Gpu(2_250, 8_000, 183_359),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Where to begin on a device, and *reason*, the arithmetic behind it in one line; a sweep says what is right."""

    max_batch_size: int
    static_batch: int
    instances: int
    reason: str


CPU_DEFAULTS = Defaults(
    max_batch_size=64, static_batch=32, instances=1, reason="no GPU: batches of 64, and one instance with every thread"
)
UNKNOWN_KNEE = 64


def knee(gpu_name: str) -> int:
    """The power of two at which an FP16 layer on *gpu_name* stops being bound by reading its weights."""
    gpu = GPUS.get(gpu_key(gpu_name))
    if gpu is None:
        return UNKNOWN_KNEE
    return _power_of_two(int(gpu.fp16_tflops * 1e12 / (gpu.bandwidth_gb_per_s * 1e9)))


def gpu_key(gpu_name: str) -> str:
    """The entry of ``GPUS`` for a name as nvidia-smi prints it, such as ``NVIDIA A100-SXM4-80GB``; empty for none."""
    words = gpu_name.upper().replace("-", " ").split()
    return next((key for key in GPUS if key in words), "")


def defaults_for(gpu_name: str, memory_mib: int, bytes_per_row: int, weights_bytes: int) -> Defaults:
    """Where to begin with a model of *weights_bytes* whose activations take *bytes_per_row*; 0 is not known.

    Without a GPU (an empty name, or no memory) these are the defaults for a CPU.

    Raises:
        InvalidInput: the weights and two rows do not fit, or a number is negative.
    """
    if min(memory_mib, bytes_per_row, weights_bytes) < 0:
        raise InvalidInput(f"Memory {memory_mib} MiB, row {bytes_per_row} B, weights {weights_bytes} B: expected >= 0.")
    if not gpu_name or not memory_mib:
        return CPU_DEFAULTS
    limit = knee(gpu_name)
    # Two instances only where both keep the whole knee: half the batch twice is no gain.
    fits = {n: _rows_that_fit(memory_mib, bytes_per_row, weights_bytes, n) for n in (INSTANCES, 1)}
    instances = INSTANCES if fits[INSTANCES] >= limit else 1
    if fits[instances] < 2:
        raise InvalidInput(
            f"{gpu_name} has {memory_mib} MiB; weights of {weights_bytes / MIB:,.0f} MiB leave room for "
            f"{max(fits[instances], 0)} rows of {bytes_per_row / MIB:,.1f} MiB: expected 2; take a larger GPU."
        )
    largest = min(limit, _power_of_two(fits[instances]))
    return Defaults(
        max_batch_size=largest,
        static_batch=min(largest, OFFLINE_BATCHES[0]),
        instances=instances,
        reason=_reason(gpu_name, limit, fits[instances] if bytes_per_row else 0, instances),
    )


def for_gpu(config: ModelConfig, defaults: Defaults, batching: DynamicBatching) -> ModelConfig:
    """*config* as the dynamic variant with *defaults* on a GPU; a smaller max_batch_size, as verified, stays."""
    changed = copied(config)
    changed.max_batch_size = min(config.max_batch_size, defaults.max_batch_size)
    for group in changed.instance_group:
        group.count = defaults.instances
    fitting = tuple(size for size in batching.preferred_batch_sizes if size <= changed.max_batch_size)
    return on_gpus(
        dynamic(
            changed,
            DynamicBatching(preferred_batch_sizes=fitting, max_queue_delay_us=batching.max_queue_delay_us),
        )
    )


def _rows_that_fit(memory_mib: int, bytes_per_row: int, weights_bytes: int, instances: int) -> int:
    free_bytes = (memory_mib * USABLE_SHARE - CONTEXT_MIB) * MIB - instances * weights_bytes
    if not bytes_per_row:
        return 2**31 if free_bytes > 0 else -1
    return int(free_bytes // (instances * ARENA_GROWTH * bytes_per_row))


def _reason(gpu_name: str, limit: int, rows: int, instances: int) -> str:
    of_memory = f"{rows:,} rows fit into memory" if rows else "what a row takes is not known"
    how_many = f"{instances} instance{'s' if instances > 1 else ''}"
    return f"{gpu_name}: more than {limit} rows compute no faster each, and {of_memory} with {how_many}"


def _power_of_two(number: int) -> int:
    return 1 << (number.bit_length() - 1)
