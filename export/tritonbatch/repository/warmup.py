"""Warm-up: executions that Triton runs on every instance before it says that the model is ready.

The first execution of a size is slow (memory is allocated, kernels are chosen), so each size that will be served is
run once before users pay for it. Triton makes a sample of batch B from B requests of batch 1 in one execution, which
its statistics count.
"""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelInput, ModelWarmup

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import copied

# Stands for a free size; the made-up rows of an export are of the same length.
FREE_SIZE = 32
# Random bytes are harmless as these. An integer may be an index or a mask, where most values are out of range, and
# random half floats are often infinite.
_RANDOM = (DataType.TYPE_FP32, DataType.TYPE_FP64)


def sizes_served(config: ModelConfig) -> tuple[int, ...]:
    """The batch sizes that *config* makes likely: 1, the preferred ones and the largest."""
    largest = max(config.max_batch_size, 1)
    return tuple(sorted({1, *config.dynamic_batching.preferred_batch_size, largest}))


def warm_up(config: ModelConfig, batch_sizes: Sequence[int] = (), *, free_size: int = FREE_SIZE) -> ModelConfig:
    """*config* with one warm-up sample for each of *batch_sizes*, by default the sizes that it will serve.

    Raises:
        InvalidInput: an ensemble (its steps warm up themselves), or a size outside 1..max_batch_size.
    """
    if config.HasField("ensemble_scheduling"):
        raise InvalidInput(f"Warm-up of the ensemble {config.name}: expected a model; warm up its steps instead.")
    changed = copied(config)
    changed.ClearField("model_warmup")
    for size in sorted(set(batch_sizes or sizes_served(config))):
        if not 1 <= size <= max(config.max_batch_size, 1):
            raise InvalidInput(f"The warm-up batch is {size}: expected 1 to {max(config.max_batch_size, 1)}.")
        sample = changed.model_warmup.add(name=f"batch-{size}", batch_size=size)
        for tensor in config.input:
            sample.inputs[tensor.name].CopyFrom(_input(tensor, free_size))
    return changed


def _input(tensor: ModelInput, free_size: int) -> ModelWarmup.Input:
    dims = [free_size if size < 1 else size for size in tensor.dims]
    if tensor.data_type in _RANDOM:
        return ModelWarmup.Input(data_type=tensor.data_type, dims=dims, random_data=True)
    return ModelWarmup.Input(data_type=tensor.data_type, dims=dims, zero_data=True)
