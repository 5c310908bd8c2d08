"""What an export writes about batching: from flags to variants and their files. Knows nothing about models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.catalogue import STANDARD, TWO_INSTANCES, Settings, completed, variants_named
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.gpus import GPUS, defaults_for, for_gpu
from tritonbatch.repository.layout import DEFAULT_VARIANT, write_bulk, write_variants
from tritonbatch.repository.priority import Priority, QueuePolicy
from tritonbatch.repository.settings import on_gpus, slo_histogram
from tritonbatch.repository.two_instances import bulk
from tritonbatch.repository.variants import DynamicBatching, why


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Everything about batching that an export writes into the variants."""

    max_batch_size: int
    static_batch: int
    dynamic: DynamicBatching = field(default_factory=DynamicBatching)
    instances: Instances = field(default_factory=Instances)
    variants: Sequence[str] = STANDARD
    priority: Priority = field(default_factory=Priority)
    queue: QueuePolicy = field(default_factory=QueuePolicy)
    cache: bool = False
    warm_up: bool = False
    gpus: Sequence[int] = ()
    for_gpus: Sequence[str] = ()
    slo_ms: float | None = None

    @property
    def settings(self) -> Settings:
        """The part that the catalogue of variants takes."""
        return Settings(
            static_batch=self.static_batch,
            dynamic=self.dynamic,
            priority=self.priority,
            queue=self.queue,
            cache=self.cache,
            warm_up=self.warm_up,
        )

    @property
    def default(self) -> str:
        """The variant that config.pbtxt holds."""
        return DEFAULT_VARIANT if DEFAULT_VARIANT in self.variants else self.variants[0]


def stem(name: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], batching: Batching) -> ModelConfig:
    """The configuration that the variants of *batching* grow from."""
    config = onnx_config(name, inputs, outputs, max_batch_size=batching.max_batch_size, instances=batching.instances)
    return on_gpus(config, batching.gpus) if batching.gpus else config


def check_batching(name: str, batching: Batching) -> None:
    """Refuse settings that no server would load, before minutes are spent on the export."""
    if not batching.variants or len(set(batching.variants)) != len(batching.variants):
        raise InvalidInput(f"The variants are {list(batching.variants)}: expected each once.")
    configurations(stem(name, (), (), batching), batching)


def configurations(config: ModelConfig, batching: Batching) -> tuple[dict[str, ModelConfig], dict[str, str]]:
    """The variants of *config* by name, and what stands on top of those that have no standing reason."""
    variants = variants_named(batching.variants, config, batching.settings)
    comments = {}
    for key in batching.for_gpus:
        if key not in GPUS:
            raise InvalidInput(f"No defaults for the GPU {key!r}: expected one of {', '.join(GPUS)}.")
        defaults = defaults_for(key, GPUS[key].memory_mib, 0, 0)
        variants[key.lower()] = completed(for_gpu(config, defaults, batching.dynamic), batching.settings)
        comments[key.lower()] = f"{key.lower()}: dynamic. {defaults.reason}."
    if batching.slo_ms is not None:
        name = f"{batching.default}-slo"
        variants[name] = slo_histogram(variants[batching.default], batching.slo_ms)
        comments[name] = f"{why(batching.default)}\nBuckets around {batching.slo_ms:g} ms: for Triton 2.52 or later."
    return variants, comments


def write_configurations(model_directory: Path, config: ModelConfig, batching: Batching) -> list[Path]:
    """Write all of *batching* for the model in *model_directory*; return the files that changed."""
    variants, comments = configurations(config, batching)
    changed = write_variants(model_directory, variants, default=batching.default, comments=comments)
    if TWO_INSTANCES in batching.variants:
        changed += write_bulk(model_directory, completed(bulk(config), batching.settings))
    return changed
