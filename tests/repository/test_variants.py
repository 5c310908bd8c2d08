"""Variants by what they mean: batch limits, schedulers, queues, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy

from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.catalogue import NAMES, Settings, variant_named, variants_named
from tritonbatch.repository.config import Instances, onnx_config, scheduler_of, tensorrt_config
from tritonbatch.repository.cuda_graphs import cuda_graphs
from tritonbatch.repository.priority import Priority, QueuePolicy, priority, queue_policy
from tritonbatch.repository.two_instances import bulk, interactive
from tritonbatch.repository.variants import DynamicBatching, dynamic, offline, online, static, why

X = TensorSpec("x", "TYPE_FP32", (4,))
SETTINGS = Settings(static_batch=8)


def stem(max_batch_size: int = 64) -> ModelConfig:
    """A configuration without a scheduler."""
    return onnx_config("model", [X], [X], max_batch_size=max_batch_size, instances=Instances())


def engine(*dims: int) -> ModelConfig:
    """A TensorRT configuration whose input has *dims*."""
    spec = TensorSpec("x", "TYPE_FP16", dims)
    return tensorrt_config("model", [spec], [spec], max_batch_size=64, instances=Instances())


@pytest.mark.parametrize(
    ("name", "largest", "expected", "scheduler", "delay_us"),
    [
        ("serial", 64, 1, "default", 0),
        ("static", 64, 8, "default", 0),
        ("static-32", 64, 32, "default", 0),
        ("static-1", 64, 1, "default", 0),
        ("dynamic", 64, 64, "dynamic", 0),
        ("online", 64, 8, "dynamic", 50_000),
        ("online", 4, 4, "dynamic", 50_000),
        ("offline", 128, 64, "default", 0),
        ("offline", 63, 32, "default", 0),
        ("offline", 16, 16, "default", 0),
        ("priority", 64, 64, "dynamic", 0),
        ("two-instances", 64, 8, "dynamic", 50_000),
    ],
)
def test_a_name_is_a_batch_limit_a_scheduler_and_a_delay(
    name: str, largest: int, expected: int, scheduler: str, delay_us: int
) -> None:
    """Each variant by name has what its name promises, within the limit that was verified."""
    settings = Settings(static_batch=min(8, largest))
    config = variant_named(name, stem(largest), settings)
    assert (config.max_batch_size, scheduler_of(config)) == (expected, scheduler)
    assert config.dynamic_batching.max_queue_delay_microseconds == delay_us


@pytest.mark.parametrize("name", [*NAMES, "static-32"])
def test_every_variant_says_why_and_leaves_its_stem_alone(name: str) -> None:
    """The first line of each file gives its use in one sentence, and making a variant does not change the stem."""
    config = stem()
    variant_named(name, config, SETTINGS)
    assert config == stem()
    assert why(name).startswith(f"{name}: ")
    assert why(name).count("\n") == 0
    assert why("static-32").count("static-B") + why("static-32").count("exactly B") == 0


@pytest.mark.parametrize("name", ["turbo", "static-", "static-0", "static-08", "static-65", "static--1"])
def test_names_that_are_no_variant_are_refused(name: str) -> None:
    """An unknown name, or a static batch that is no size up to the limit, is a mistake."""
    with pytest.raises(InvalidInput, match="expected"):
        variant_named(name, stem(), SETTINGS)


def test_a_static_engine_gets_a_cuda_graph_of_exactly_its_batch() -> None:
    """With fixed shapes TensorRT captures one graph, for B and the dims without the batch; ONNX and free dims none."""
    cuda = static(engine(3, 224), 32).optimization.cuda
    assert cuda.graphs
    assert [(graph.batch_size, list(graph.input["x"].dim)) for graph in cuda.graph_spec] == [(32, [3, 224])]
    assert not static(engine(-1), 32).HasField("optimization")
    assert not static(stem(), 32).HasField("optimization")


@pytest.mark.parametrize(
    ("config", "sizes", "says"),
    [
        (stem(), (8,), "backend is 'onnxruntime': expected 'tensorrt'"),
        (engine(-1), (8,), r"dims \[-1\]: expected fixed"),
        (engine(4), (65,), "batch is 65: expected 1 to 64"),
        (engine(4), (0,), "batch is 0: expected 1 to 64"),
    ],
)
def test_graphs_that_could_not_be_captured_are_refused(config: ModelConfig, sizes: tuple[int, ...], says: str) -> None:
    """CUDA graphs need the TensorRT backend, fixed shapes and a batch within the limit."""
    with pytest.raises(InvalidInput, match=says):
        cuda_graphs(config, sizes)


def test_priority_levels_have_a_default_and_policies_of_their_own() -> None:
    """Unmarked requests get the lowest level; each level has its queue policy, and the others the default one."""
    settings = Priority(
        levels=3,
        policies={1: QueuePolicy(timeout_us=200_000, timeout_action="DELAY", allow_timeout_override=True)},
        default_policy=QueuePolicy(max_queue_size=100),
    )
    batcher = priority(stem(), DynamicBatching(preferred_batch_sizes=(8,)), settings).dynamic_batching
    assert (batcher.priority_levels, batcher.default_priority_level) == (3, 3)
    assert list(batcher.preferred_batch_size) == [8]
    assert dict(batcher.priority_queue_policy) == {
        1: ModelQueuePolicy(timeout_action="DELAY", default_timeout_microseconds=200_000, allow_timeout_override=True)
    }
    assert batcher.default_queue_policy.max_queue_size == 100
    assert priority(stem(), DynamicBatching(), Priority(default_level=1)).dynamic_batching.default_priority_level == 1


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        (Priority(levels=1), "priority levels are 1: expected 2 or more"),
        (Priority(levels=2, default_level=3), "default level is for priority level 3: expected 1 to 2"),
        (Priority(levels=3, policies={4: QueuePolicy()}), "policy is for priority level 4: expected 1 to 3"),
        (Priority(policies={0: QueuePolicy()}), "policy is for priority level 0: expected 1 to 2"),
        (Priority(policies={1: QueuePolicy(timeout_us=-1)}), "queue timeout of level 1 is -1"),
        (Priority(policies={1: QueuePolicy(max_queue_size=-1)}), "queue size of level 1 is -1"),
        (Priority(policies={2: QueuePolicy(timeout_us=1, timeout_action="DROP")}), "'DROP': expected REJECT or DELAY"),
        (Priority(policies={2: QueuePolicy(timeout_action="DELAY")}), "level 2 has no timeout"),
        (Priority(default_policy=QueuePolicy(allow_timeout_override=True)), "the default has no timeout"),
    ],
)
def test_priorities_that_mean_nothing_are_refused(settings: Priority, says: str) -> None:
    """Levels out of range fail to load in Triton, and policies without a timeout would silently do nothing."""
    with pytest.raises(InvalidInput, match=says):
        priority(stem(), DynamicBatching(), settings)


def test_a_queue_policy_needs_a_queue() -> None:
    """Without the dynamic batcher nothing would obey the policy."""
    config = queue_policy(dynamic(stem(), DynamicBatching()), QueuePolicy(max_queue_size=5))
    assert config.dynamic_batching.default_queue_policy.max_queue_size == 5
    with pytest.raises(InvalidInput, match="expected the dynamic batcher"):
        queue_policy(static(stem(), 8), QueuePolicy(max_queue_size=5))


def test_two_instances_are_two_models_that_take_turns() -> None:
    """The halves are online and offline under two names; on the shared resource bulk gets one turn of four."""
    fast, slow = interactive(stem()), bulk(stem())
    assert (fast.name, slow.name) == ("model", "model_bulk")
    limits = [config.instance_group[0].rate_limiter for config in (fast, slow)]
    assert [limit.priority for limit in limits] == [1, 4]
    assert [[(each.name, each.count) for each in limit.resources] for limit in limits] == [[("device", 1)]] * 2
    fast.instance_group[0].ClearField("rate_limiter")
    assert fast == online(stem())
    slow.instance_group[0].ClearField("rate_limiter")
    slow.name = "model"
    assert slow == offline(stem())


@given(
    name=st.sampled_from([*NAMES, "static-2"]),
    largest=st.integers(2, 300),
    cache=st.booleans(),
    warm=st.booleans(),
    max_queue_size=st.integers(0, 5),
)
def test_whatever_is_combined_stays_within_the_limit(
    *, name: str, largest: int, cache: bool, warm: bool, max_queue_size: int
) -> None:
    """Every combination of variant and extras keeps all sizes in 1..max_batch_size and all tensors as they were."""
    queue = QueuePolicy(max_queue_size=max_queue_size)
    settings = Settings(static_batch=2, queue=queue, cache=cache, warm_up=warm)
    config = variants_named([name], stem(largest), settings)[name]
    sizes = [*config.dynamic_batching.preferred_batch_size, *(sample.batch_size for sample in config.model_warmup)]
    assert 1 <= config.max_batch_size <= largest
    assert all(1 <= size <= config.max_batch_size for size in sizes)
    assert (bool(config.model_warmup), config.response_cache.enable) == (warm, cache)
    assert list(config.input) == list(stem().input)
    if scheduler_of(config) == "dynamic":
        assert config.dynamic_batching.default_queue_policy.max_queue_size == max_queue_size
