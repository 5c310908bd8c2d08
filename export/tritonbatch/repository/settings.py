"""Settings that go on top of any variant: cache, served versions, GPUs, shared resources, histogram buckets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import copied

LATENCY_HISTOGRAM = "nv_inference_first_response_histogram_ms"
# Close around the objective, where a quantile must be exact to decide, and coarse away from it.
SLO_SHARES = (0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 4.0)


def response_cache(config: ModelConfig) -> ModelConfig:
    """*config* with the response cache, which answers a repeated request without an execution.

    It takes a server that is started with ``--cache-config=local,size=BYTES`` too; without it nothing is cached.

    Raises:
        InvalidInput: sequences or decoupled answers, which Triton does not cache.
    """
    if config.HasField("sequence_batching") or config.model_transaction_policy.decoupled:
        raise InvalidInput(f"Response cache for {config.name}: expected no sequences and one answer per request.")
    changed = copied(config)
    changed.response_cache.enable = True
    return changed


def latest_versions(config: ModelConfig, count: int) -> ModelConfig:
    """*config* that serves the *count* highest versions; a request without a version gets the highest."""
    if count < 1:
        raise InvalidInput(f"The number of latest versions is {count}: expected at least 1.")
    changed = _without_policy(config)
    changed.version_policy.latest.num_versions = count
    return changed


def all_versions(config: ModelConfig) -> ModelConfig:
    """*config* that serves every version; a request without a version gets the highest."""
    changed = _without_policy(config)
    changed.version_policy.all.SetInParent()
    return changed


def specific_versions(config: ModelConfig, versions: Sequence[int]) -> ModelConfig:
    """*config* that serves exactly *versions*, each of which must exist."""
    if not versions or min(versions) < 1:
        raise InvalidInput(f"The versions to serve are {list(versions)}: expected whole numbers of at least 1.")
    changed = _without_policy(config)
    changed.version_policy.specific.versions.extend(sorted(set(versions)))
    return changed


def on_gpus(config: ModelConfig, gpus: Sequence[int] = ()) -> ModelConfig:
    """*config* with every instance group on *gpus*, or on every GPU that Triton sees if there are none.

    The count of a group is per GPU: two instances on two GPUs are four.
    """
    if any(gpu < 0 for gpu in gpus) or len(set(gpus)) != len(gpus):
        raise InvalidInput(f"The GPUs are {list(gpus)}: expected different numbers from 0 on, as nvidia-smi shows.")
    changed = copied(config)
    if not changed.instance_group:
        changed.instance_group.add(count=1)
    for group in changed.instance_group:
        group.kind = ModelInstanceGroup.KIND_GPU
        group.gpus[:] = sorted(gpus)
    return changed


def rate_limited(config: ModelConfig, resources: Mapping[str, int], *, priority: int = 1) -> ModelConfig:
    """*config* whose instances take *resources* for each execution, with a turn every *priority* turns.

    Models that need the same resource take turns instead of running at once; a model of priority 4 gets about a
    quarter of the turns of one of priority 1. It takes a server with ``--rate-limit=execution_count``, and is
    ignored by any other.
    """
    if priority < 1 or any(count < 1 for count in resources.values()):
        raise InvalidInput(
            f"The rate limit is priority {priority} with {dict(resources)}: expected 1 or more everywhere."
        )
    changed = copied(config)
    for group in changed.instance_group:
        group.rate_limiter.Clear()
        group.rate_limiter.priority = priority
        for name, count in sorted(resources.items()):
            group.rate_limiter.resources.add(name=name, count=count)
    return changed


def slo_buckets_ms(slo_ms: float) -> tuple[float, ...]:
    """Bucket limits around the objective *slo_ms*, in whole milliseconds since Triton observes no finer, rising."""
    if not 1 <= slo_ms < float("inf"):
        raise InvalidInput(f"The latency objective is {slo_ms} ms: expected at least 1, as Triton counts whole ms.")
    # The objective itself is a limit, so that the share of requests within it is read and not interpolated.
    return tuple(sorted({float(max(1, round(slo_ms * share))) for share in SLO_SHARES}))


def slo_histogram(config: ModelConfig, slo_ms: float) -> ModelConfig:
    """*config* whose first-response histogram has buckets around *slo_ms*.

    It takes a server with ``--metrics-config=histogram_latencies=true``.
    """
    changed = copied(config)
    changed.model_metrics.Clear()
    control = changed.model_metrics.metric_control.add()
    control.metric_identifier.family = LATENCY_HISTOGRAM
    control.histogram_options.buckets.extend(slo_buckets_ms(slo_ms))
    return changed


def _without_policy(config: ModelConfig) -> ModelConfig:
    changed = copied(config)
    changed.ClearField("version_policy")
    return changed
