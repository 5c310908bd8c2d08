"""What goes on top of a variant: warm-up, cache, versions, GPUs, turns, buckets; and the defaults for a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository import settings
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.gpu_in_hand import GpuInHand, gpus_in_hand, parse_gpus
from tritonbatch.repository.gpus import GPUS, MIB, defaults_for, for_gpu, gpu_key, knee
from tritonbatch.repository.variants import DynamicBatching, dynamic, serial
from tritonbatch.repository.warmup import sizes_served, warm_up

INPUTS = [
    TensorSpec("image", "TYPE_FP32", (3, -1)),
    TensorSpec("half", "TYPE_FP16", (2,)),
    TensorSpec("ids", "TYPE_INT64", (-1,)),
    TensorSpec("mask", "TYPE_BOOL", (1,)),
]


def stem(max_batch_size: int = 16) -> ModelConfig:
    """A configuration without a scheduler."""
    return onnx_config("model", INPUTS, INPUTS[:1], max_batch_size=max_batch_size, instances=Instances(count=2))


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        (serial(stem()), (1,)),
        (stem(), (1, 16)),
        (dynamic(stem(), DynamicBatching(preferred_batch_sizes=(8, 4))), (1, 4, 8, 16)),
        (ModelConfig(name="unbatched"), (1,)),
    ],
)
def test_the_sizes_that_will_be_served_are_warmed_up(config: ModelConfig, sizes: tuple[int, ...]) -> None:
    """One sample for each of 1, the preferred sizes and the maximum."""
    assert sizes_served(config) == sizes
    assert [(sample.name, sample.batch_size) for sample in warm_up(config).model_warmup] == [
        (f"batch-{size}", size) for size in sizes
    ]


def test_warm_up_data_is_in_range_and_without_free_sizes() -> None:
    """Floats are random; integers, which may index something, and half floats, often infinite, are zero."""
    (sample,) = warm_up(stem(), (4,), free_size=5).model_warmup
    shown = {name: (list(data.dims), data.random_data, data.zero_data) for name, data in sample.inputs.items()}
    assert shown == {
        "image": ([3, 5], True, False),
        "half": ([2], False, True),
        "ids": ([5], False, True),
        "mask": ([1], False, True),
    }


def test_warm_up_out_of_place_is_refused() -> None:
    """A size that the model does not take, and an ensemble, which Triton does not warm up, are mistakes."""
    with pytest.raises(InvalidInput, match="batch is 17: expected 1 to 16"):
        warm_up(stem(), (17,))
    ensemble = ModelConfig(name="e")
    ensemble.ensemble_scheduling.SetInParent()
    with pytest.raises(InvalidInput, match="warm up its steps"):
        warm_up(ensemble)


def test_version_policies_exclude_each_other() -> None:
    """The last policy set is the only one, and says which versions are served."""
    config = settings.specific_versions(settings.all_versions(settings.latest_versions(stem(), 2)), [3, 1, 3])
    assert list(config.version_policy.specific.versions) == [1, 3]
    assert settings.all_versions(config).version_policy.WhichOneof("policy_choice") == "all"
    assert settings.latest_versions(config, 2).version_policy.latest.num_versions == 2


def test_gpus_apply_to_every_group_and_no_list_means_all() -> None:
    """The kind changes, the count stays, and an empty list leaves the choice of all GPUs to Triton."""
    group = settings.on_gpus(stem(), (1, 0)).instance_group[0]
    assert (group.kind, list(group.gpus), group.count) == (ModelInstanceGroup.KIND_GPU, [0, 1], 2)
    assert list(settings.on_gpus(stem()).instance_group[0].gpus) == []
    assert settings.on_gpus(ModelConfig(name="bare")).instance_group[0].count == 1


def test_turns_are_by_resource_and_priority() -> None:
    """Each instance takes the named resources, and setting them again replaces them."""
    config = settings.rate_limited(settings.rate_limited(stem(), {"a": 1}), {"c": 1, "b": 2}, priority=3)
    limiter = config.instance_group[0].rate_limiter
    assert (limiter.priority, [(each.name, each.count) for each in limiter.resources]) == (3, [("b", 2), ("c", 1)])


def decoupled() -> ModelConfig:
    """A model that may give several answers."""
    config = stem()
    config.model_transaction_policy.decoupled = True
    return config


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: settings.response_cache(decoupled()), "one answer per request"),
        (lambda: settings.latest_versions(stem(), 0), "latest versions is 0"),
        (lambda: settings.specific_versions(stem(), []), r"versions to serve are \[\]"),
        (lambda: settings.specific_versions(stem(), [0]), r"versions to serve are \[0\]"),
        (lambda: settings.on_gpus(stem(), [0, 0]), r"GPUs are \[0, 0\]: expected different"),
        (lambda: settings.on_gpus(stem(), [-1]), r"GPUs are \[-1\]"),
        (lambda: settings.rate_limited(stem(), {"r": 0}), "expected 1 or more"),
        (lambda: settings.rate_limited(stem(), {"r": 1}, priority=0), "priority 0"),
        (lambda: settings.slo_histogram(stem(), 0.5), "objective is 0.5 ms"),
        (lambda: settings.slo_histogram(stem(), float("nan")), "objective is nan ms"),
        (lambda: defaults_for("T4", -1, 0, 0), "expected >= 0"),
        (lambda: defaults_for("T4", 15_360, 0, 20 * 2**30), "take a larger GPU"),
        (lambda: defaults_for("T4", 15_360, 8 * 2**30, 0), "room for 0 rows of 8,192.0 MiB: expected 2"),
    ],
)
def test_what_cannot_be_right_is_refused(make: Callable[[], object], says: str) -> None:
    """Numbers out of range are said with what was got and expected."""
    with pytest.raises(InvalidInput, match=says):
        make()


@given(st.floats(1, 1e6))
def test_buckets_rise_and_the_objective_is_one_of_them(slo_ms: float) -> None:
    """Prometheus needs rising limits, Triton counts whole ms, and the share within the objective is read off one."""
    buckets = settings.slo_buckets_ms(slo_ms)
    assert all(a < b for a, b in itertools.pairwise(buckets))
    assert all(bucket >= 1 and bucket == int(bucket) for bucket in buckets)
    assert float(round(slo_ms)) in buckets


def test_buckets_are_written_for_the_histogram_that_triton_has() -> None:
    """The family is the only one that Triton lets a model configure."""
    (control,) = settings.slo_histogram(settings.slo_histogram(stem(), 10), 100).model_metrics.metric_control
    assert control.metric_identifier.family == "nv_inference_first_response_histogram_ms"
    assert list(control.histogram_options.buckets) == [10, 25, 50, 75, 90, 100, 110, 125, 150, 200, 400]


@pytest.mark.parametrize(
    ("name", "key", "rows"),
    [
        ("Tesla T4", "T4", 128),
        ("NVIDIA L4", "L4", 256),
        ("NVIDIA A10G", "A10G", 64),
        ("NVIDIA A100-SXM4-80GB", "A100", 128),
        ("NVIDIA H100 80GB HBM3", "H100", 256),
        ("NVIDIA H200", "H200", 128),
        ("NVIDIA GeForce GTX 1650", "", 64),
    ],
)
def test_the_knee_of_a_gpu_follows_from_its_data_sheet(name: str, key: str, rows: int) -> None:
    """Peak operations over bandwidth, down to a power of two; 64 for a GPU that is not in the table."""
    assert (gpu_key(name), knee(name)) == (key, rows)


@pytest.mark.parametrize(
    ("name", "memory_mib", "row_mib", "weights_mib", "expected"),
    [
        ("", 0, 0, 0, (64, 32, 1)),
        ("NVIDIA H100 80GB HBM3", 81_559, 0, 0, (256, 64, 2)),
        ("NVIDIA H100 80GB HBM3", 81_559, 10, 1_000, (256, 64, 2)),
        ("Tesla T4", 15_360, 100, 1_000, (32, 32, 1)),  # (0.8 * 15,360 - 512 - 1,000) / 200 = 53 rows
        ("Tesla T4", 15_360, 10, 4_000, (128, 64, 1)),  # two instances: (0.8 * 15,360 - 512 - 8,000) / 40 = 94 < 128
    ],
)
def test_defaults_are_what_helps_and_fits(
    name: str, memory_mib: int, row_mib: int, weights_mib: int, expected: tuple[int, int, int]
) -> None:
    """The batch is the smaller of knee and memory; two instances only where both hold the knee."""
    found = defaults_for(name, memory_mib, row_mib * MIB, weights_mib * MIB)
    assert (found.max_batch_size, found.static_batch, found.instances) == expected
    assert found.reason


@given(st.sampled_from([*GPUS, "unknown"]), st.integers(4_096, 200_000), st.integers(0, 2**31), st.integers(0, 2**37))
def test_defaults_never_exceed_the_memory(name: str, memory_mib: int, row: int, weights: int) -> None:
    """Whatever the model, what is recommended takes at most the usable share of the memory, or is refused."""
    try:
        found = defaults_for(name, memory_mib, row, weights)
    except InvalidInput:
        return
    taken = found.instances * (weights + 2 * row * found.max_batch_size) + 512 * MIB
    assert taken <= 0.8 * memory_mib * MIB
    assert 2 <= found.max_batch_size <= knee(name)


def test_a_gpu_file_is_dynamic_with_its_defaults_within_what_was_verified() -> None:
    """The batch limit is the smaller of the verified one and the GPU's; preferred sizes above it are dropped."""
    defaults = defaults_for("T4", 15_360, 100 * MIB, 1_000 * MIB)
    config = for_gpu(stem(64), defaults, DynamicBatching(preferred_batch_sizes=(16, 64), max_queue_delay_us=7))
    assert config.max_batch_size == 32
    assert list(config.dynamic_batching.preferred_batch_size) == [16]
    assert config.dynamic_batching.max_queue_delay_microseconds == 7
    assert (config.instance_group[0].kind, config.instance_group[0].count) == (ModelInstanceGroup.KIND_GPU, 1)
    assert for_gpu(stem(16), defaults, DynamicBatching()).max_batch_size == 16


def test_what_nvidia_smi_prints_is_read_and_its_absence_tolerated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines with a name and a number are GPUs; without the command, or with one that fails, there is none."""
    text = "NVIDIA H100 80GB HBM3, 81559\nNVIDIA A100-SXM4-80GB, [N/A]\nFailed to initialize NVML\n"
    assert parse_gpus(text) == (GpuInHand("NVIDIA H100 80GB HBM3", 81_559),)
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert gpus_in_hand() == ()
    monkeypatch.setattr("shutil.which", lambda _: "/bin/false")
    assert gpus_in_hand() == ()
