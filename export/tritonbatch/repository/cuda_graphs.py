"""CUDA graphs of the TensorRT backend, the only one that reads them.

A graph is launched only for exactly its batch and shapes; any other batch runs without. Triton by itself captures
just 1 and max_batch_size under the dynamic batcher, so the sizes that are really served are listed here. Each costs
memory and load time once per instance.
"""

from __future__ import annotations

from collections.abc import Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import copied


def is_tensorrt(config: ModelConfig) -> bool:
    """Whether *config* is served by the TensorRT backend."""
    return bool(config.platform == "tensorrt_plan" or config.backend == "tensorrt")


def cuda_graphs(config: ModelConfig, batch_sizes: Sequence[int]) -> ModelConfig:
    """*config* with a CUDA graph for exactly each of *batch_sizes*, in place of whatever graphs it had.

    Raises:
        InvalidInput: it is not TensorRT, a shape is free, or a size is outside 1..max_batch_size.
    """
    if not is_tensorrt(config):
        raise InvalidInput(
            f"CUDA graphs for {config.name}, whose backend is {config.backend!r}: expected 'tensorrt', "
            "the only one that reads them; build an engine first."
        )
    for tensor in config.input:
        if any(size < 1 for size in tensor.dims):
            raise InvalidInput(
                f"CUDA graphs for input {tensor.name!r} with dims {list(tensor.dims)}: expected fixed sizes; "
                "fix them, or leave the graphs out."
            )
    changed = copied(config)
    changed.optimization.cuda.graphs = True
    changed.optimization.cuda.ClearField("graph_spec")
    for batch_size in sorted(set(batch_sizes)):
        _add_graph(changed, batch_size)
    return changed


def _add_graph(config: ModelConfig, batch_size: int) -> None:
    if not 1 <= batch_size <= config.max_batch_size:
        raise InvalidInput(f"The CUDA graph's batch is {batch_size}: expected 1 to {config.max_batch_size}.")
    graph = config.optimization.cuda.graph_spec.add(batch_size=batch_size)
    for tensor in config.input:
        graph.input[tensor.name].dim.extend(tensor.dims)
