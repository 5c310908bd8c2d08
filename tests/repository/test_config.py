"""config.pbtxt as protobuf: what is always written, what is refused, and that text and meaning agree."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, config_text, onnx_config, read_config, scheduler_of
from tritonbatch.repository.layout import models_in, variant_config, write_variants
from tritonbatch.repository.variants import DynamicBatching, dynamic, standard_variants

X = TensorSpec("x", "TYPE_FP32", (4,))
Y = TensorSpec("y", "TYPE_INT64", (2, -1))


def stem(max_batch_size: int = 16, **instances: int) -> ModelConfig:
    """A configuration without a scheduler."""
    return onnx_config("model", [X], [Y], max_batch_size=max_batch_size, instances=Instances(**instances))


def test_what_triton_would_decide_by_itself_is_always_written() -> None:
    """Max batch, every tensor, instance count and threads stand in every variant, whatever the defaults are."""
    for config in standard_variants(stem(count=2, intra_op_threads=3), 8, DynamicBatching()).values():
        assert config.backend == "onnxruntime"
        assert config.max_batch_size >= 1
        assert [(t.name, list(t.dims)) for t in config.input] == [("x", [4])]
        assert [(t.name, list(t.dims)) for t in config.output] == [("y", [2, -1])]
        assert config.instance_group[0].count == 2
        assert config.parameters["intra_op_thread_count"].string_value == "3"


@pytest.mark.parametrize(
    ("variant", "max_batch_size", "scheduler"),
    [("serial", 1, "default"), ("static", 8, "default"), ("dynamic", 16, "dynamic")],
)
def test_variants_differ_in_batching_alone(variant: str, max_batch_size: int, scheduler: str) -> None:
    """Each variant has the batch limit and the scheduler that its name promises, and is otherwise the same."""
    config = standard_variants(stem(), 8, DynamicBatching())[variant]
    assert (config.max_batch_size, scheduler_of(config)) == (max_batch_size, scheduler)
    config.max_batch_size = 16
    config.ClearField("dynamic_batching")
    assert config == stem()


def test_dynamic_settings_are_written_sorted_and_once() -> None:
    """Preferred sizes appear sorted without repeats, and the delay in microseconds."""
    config = dynamic(stem(), DynamicBatching(preferred_batch_sizes=(8, 4, 8), max_queue_delay_us=500))
    assert list(config.dynamic_batching.preferred_batch_size) == [4, 8]
    assert config.dynamic_batching.max_queue_delay_microseconds == 500


@pytest.mark.parametrize(
    ("batching", "static_batch", "says"),
    [
        (DynamicBatching(preferred_batch_sizes=(8, 32)), 8, "preferred batch size is 32: expected 1 to 16"),
        (DynamicBatching(preferred_batch_sizes=(0,)), 8, "preferred batch size is 0: expected 1 to 16"),
        (DynamicBatching(max_queue_delay_us=-1), 8, "queue delay is -1 µs"),
        (DynamicBatching(), 17, "static batch size is 17: expected 1 to 16"),
    ],
)
def test_settings_that_no_server_loads_are_refused(batching: DynamicBatching, static_batch: int, says: str) -> None:
    """The sentence names the setting, what it got and the range that it expected."""
    with pytest.raises(InvalidInput, match=says):
        standard_variants(stem(), static_batch, batching)


@pytest.mark.parametrize(
    ("name", "max_batch_size", "count"), [("a/b", 8, 1), ("", 8, 1), ("m", 1, 1), ("m", -1, 1), ("m", 8, 0)]
)
def test_impossible_models_are_refused(name: str, max_batch_size: int, count: int) -> None:
    """Names that cannot be folders, batches that cannot batch and zero instances are mistakes, not configurations."""
    with pytest.raises(InvalidInput):
        onnx_config(name, [X], [Y], max_batch_size=max_batch_size, instances=Instances(count=count))


@given(
    st.lists(st.integers(1, 64), max_size=5),
    st.integers(0, 2**40),
    st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=20),
)
def test_text_means_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, preferred: list[int], delay: int, name: str
) -> None:
    """Whatever the settings and tensor names (slashes, quotes, any script), reading the text gives the same config."""
    spec = TensorSpec(name, "TYPE_FP16", (1,))
    config = onnx_config("m", [spec], [spec], max_batch_size=64, instances=Instances())
    config = dynamic(config, DynamicBatching(preferred_batch_sizes=preferred, max_queue_delay_us=delay))
    path = tmp_path_factory.mktemp("config") / "config.pbtxt"
    path.write_text(config_text(config, "why\nit is so"), encoding="utf-8")
    assert read_config(path) == config


@pytest.mark.parametrize(
    "text", ["max_batch_size: x", "colour: 3", 'name: "a', "dynamic_batching {} sequence_batching {}"]
)
def test_what_the_text_format_rejects_names_file_line_and_column(tmp_path: Path, text: str) -> None:
    """A config.pbtxt with a mistake gives its path and the place in one sentence."""
    path = tmp_path / "config.pbtxt"
    path.write_text(f"# fine\n{text}\n")
    with pytest.raises(InvalidInput, match=rf"{path} is not a valid config.pbtxt: 2:\d+"):
        read_config(path)


def test_nothing_is_overwritten_without_a_copy(tmp_path: Path) -> None:
    """A config.pbtxt that someone edited survives as .bak; an equal one is not touched."""
    variants = standard_variants(stem(), 8, DynamicBatching())
    assert len(write_variants(tmp_path, variants)) == 4
    assert write_variants(tmp_path, variants) == []
    edited = tmp_path / "config.pbtxt"
    edited.write_text("# mine\n")
    assert write_variants(tmp_path, variants) == [edited]
    assert (tmp_path / "config.pbtxt.bak").read_text() == "# mine\n"
    assert read_config(edited) == variants["dynamic"]


def test_a_missing_variant_lists_those_that_exist(repository: Path) -> None:
    """Asking for a variant that is not there names those that are."""
    with pytest.raises(InvalidInput, match="it has dynamic, serial, static"):
        variant_config(repository, "linear", "turbo")
    assert models_in(repository) == ["echo", "gather", "linear", "scalar"]
