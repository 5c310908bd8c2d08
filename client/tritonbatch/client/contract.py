"""What a model declares: its tensors, its batch limit, its queue policy; from metadata and configuration."""

from __future__ import annotations

from dataclasses import dataclass

from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelMetadataResponse

from tritonbatch.client.errors import InvalidRequest
from tritonbatch.client.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """One input or output; *shape* is what a caller sends, with the batch axis first where there is one, -1 for any."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """What a request to the model must look like; ``max_batch_size`` 0 means that it has no batch axis."""

    model: str
    max_batch_size: int
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    config: ModelConfig

    @property
    def stateful(self) -> bool:
        """Whether requests depend on each other (sequence batching), so that none may be sent twice."""
        return bool(self.config.HasField("sequence_batching"))

    @property
    def delays(self) -> bool:
        """Whether Triton's dynamic batcher keeps requests waiting for others (a queue delay)."""
        return bool(self.config.dynamic_batching.max_queue_delay_microseconds)

    def takes_queue_timeout(self, priority: int) -> bool:
        """Whether the queue policy of *priority* lets a request bring its own timeout.

        An override can only shorten a default timeout; where there is none it does nothing (Triton's
        ``PolicyQueue::Enqueue``).
        """
        batching = self.config.dynamic_batching
        policy = batching.priority_queue_policy.get(
            priority or batching.default_priority_level, batching.default_queue_policy
        )
        return bool(policy.allow_timeout_override and policy.default_timeout_microseconds)


def check_options(contract: Contract, options: Options) -> None:
    """Check what *options* ask for against the model, where Triton would ignore it or refuse it later.

    Raises:
        InvalidRequest: an output that the model does not have, or a priority beyond its levels.
    """
    if unknown := [name for name in options.outputs if name not in contract.outputs]:
        raise InvalidRequest(
            f"Model {contract.model} has no output {', '.join(unknown)}; expected of "
            f"{', '.join(sorted(contract.outputs))}."
        )
    levels = contract.config.dynamic_batching.priority_levels
    if levels and options.priority > levels:  # without levels any priority is as good as none
        raise InvalidRequest(
            f"Model {contract.model}: got priority {options.priority}; expected 1 (the highest) to {levels}, its "
            "priority_levels, or 0 for its default."
        )


def contract(metadata: ModelMetadataResponse, config: ModelConfig) -> Contract:
    """Put together what *metadata* (types and shapes on the wire) and *config* (optional inputs, policies) say."""
    optional = {tensor.name for tensor in config.input if tensor.optional}
    return Contract(
        model=metadata.name,
        max_batch_size=config.max_batch_size,
        inputs={tensor.name: _tensor(tensor, tensor.name in optional) for tensor in metadata.inputs},
        outputs={tensor.name: _tensor(tensor, optional=False) for tensor in metadata.outputs},
        config=config,
    )


def _tensor(declared: ModelMetadataResponse.TensorMetadata, optional: bool) -> Tensor:  # noqa: FBT001 - a field's value
    return Tensor(name=declared.name, datatype=declared.datatype, shape=tuple(declared.shape), optional=optional)
