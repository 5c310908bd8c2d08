"""Faults that people report, in the shape they report them, with what is right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tritonbatch.lint.compare import differences, normalised
from tritonbatch.lint.finding import Finding
from tritonbatch.lint.linter import lint_file, lint_repository, subject_of
from tritonbatch.lint.parse import parse
from tritonbatch.lint.repair import repairs
from tritonbatch.repository.config import read_config


def lint(bench: Any, folder: Path, text: str, graph: str = "linear", deadline_us: int = 0) -> list[Finding]:
    """What the linter says about *text* with the tiny model *graph*."""
    model = bench.write_model(folder, "model", graph, text)
    return lint_file(model / "config.pbtxt", model, deadline_us=deadline_us)


def only(findings: list[Finding], rule: str) -> Finding:
    """The one finding of *rule*, which must be the only error or warning there is."""
    assert [each.rule for each in findings] == [rule]
    return findings[0]


def without_batch(bench: Any) -> str:
    """The base for the graph `unbatched`."""
    return str(bench.base.replace("max_batch_size: 8", "max_batch_size: 0").replace("dims: [3]", "dims: [4]"))


def test_dynamic_batching_without_a_batch_axis(bench: Any, tmp_path: Path) -> None:
    """max_batch_size 0 with dynamic_batching is a warning, with a preferred size an error."""
    text = without_batch(bench)
    warning = only(lint(bench, tmp_path / "a", f"{text}dynamic_batching {{ }}", "unbatched"), "no-batching")
    assert warning.level == "warning"
    preferred = f"{text}dynamic_batching {{ preferred_batch_size: [4] }}"
    error = only(lint(bench, tmp_path / "b", preferred, "unbatched"), "preferred-without-batch-axis")
    assert error.level == "error"


def test_preferred_size_over_max_is_dropped(bench: Any, tmp_path: Path) -> None:
    """Of [8, 16, 32] with max_batch_size 16 the error names 32, and --fix keeps the other two."""
    text = bench.base.replace("max_batch_size: 8", "max_batch_size: 16")
    finding = only(
        lint(bench, tmp_path, f"{text}dynamic_batching {{ preferred_batch_size: [8, 16, 32] }}"), "preferred-over-max"
    )
    assert finding.field == "dynamic_batching.preferred_batch_size[2]"
    assert "32" in finding.message
    (repaired,) = repairs(tmp_path / "model")
    repaired.write()
    assert list(read_config(repaired.file).dynamic_batching.preferred_batch_size) == [8, 16]


@pytest.mark.parametrize("size", [0, -4])
def test_preferred_size_not_positive(size: int, bench: Any, tmp_path: Path) -> None:
    """A preferred size of 0 or less is an error."""
    finding = only(
        lint(bench, tmp_path, f"{bench.base}dynamic_batching {{ preferred_batch_size: [{size}] }}"),
        "preferred-not-positive",
    )
    assert "not positive" in finding.message


def test_priorities(bench: Any, tmp_path: Path) -> None:
    """Three levels without a default, and a policy for level 4, are two errors."""
    text = f"{bench.base}dynamic_batching {{ priority_levels: 3 priority_queue_policy {{ key: 4 value {{ }} }} }}"
    findings = lint(bench, tmp_path, text)
    assert [each.rule for each in findings] == ["default-priority", "priority-policy-level"]
    assert "1 (highest) to 3" in findings[0].message


def test_queue_timeout_against_a_deadline(bench: Any, tmp_path: Path) -> None:
    """Any queue timeout asks for a soak test; one of 200 µs under a deadline of 100 ms is too short as well."""
    text = f"{bench.base}dynamic_batching {{ default_queue_policy {{ default_timeout_microseconds: 200 }} }}"
    findings = lint(bench, tmp_path, text, deadline_us=100_000)
    assert [each.rule for each in findings] == ["queue-timeout", "queue-timeout-short"]
    assert "server#8870" in findings[0].message
    assert "soak test" in findings[0].fix
    assert "10000 µs" in findings[1].message


def test_delay_over_the_deadline(bench: Any, tmp_path: Path) -> None:
    """A queue delay that reaches the callers' deadline is a warning, which nobody gets without a deadline."""
    text = f"{bench.base}dynamic_batching {{ max_queue_delay_microseconds: 100000 }}"
    assert only(lint(bench, tmp_path / "a", text, deadline_us=50_000), "delay-long").level == "warning"
    assert lint(bench, tmp_path / "b", text) == []


def test_fixed_batch_axis(bench: Any, tmp_path: Path) -> None:
    """A graph exported with batch 1 is an error on every tensor that offers both ways out, and is never repaired."""
    findings = lint(bench, tmp_path, bench.base, "fixed")
    assert [each.rule for each in findings] == ["graph-batch-fixed"] * 2
    assert "export again" in findings[0].fix
    assert "max_batch_size: 0" in findings[0].fix
    assert repairs(tmp_path / "model") == []


def test_batch_axis_fixed_on_the_output_only(bench: Any, tmp_path: Path) -> None:
    """A graph that is dynamic on its input only is an error that names the output."""
    finding = only(
        lint(bench, tmp_path, bench.base.replace("dims: [3]", "dims: [4]"), "output_fixed"), "graph-batch-fixed"
    )
    assert "output 'y' [1, 4]" in finding.message


def test_free_dimension_for_a_fixed_one(bench: Any, tmp_path: Path) -> None:
    """Dims [-1, 25] for logits [-1, 256, 25] name the fixed 256, and --fix writes it."""
    text = bench.base.replace("dims: [4]", "dims: [256, 25]").replace("dims: [3]", "dims: [-1, 25]")
    finding = only(lint(bench, tmp_path, text, "logits"), "graph-output-free")
    assert finding.field == "output[0].dims[0]"
    assert "is -1, expected the fixed 256" in finding.message
    (repaired,) = repairs(tmp_path / "model")
    assert "+  dims: 256" in repaired.diff


@pytest.mark.parametrize(("dims", "graph", "after"), [("[-1, 256, 25]", "logits", [256, 25]), ("[-1]", "vector", [1])])
def test_dims_with_the_batch(dims: str, graph: str, after: list[int], bench: Any, tmp_path: Path) -> None:
    """Dims that spell out the batch lose it by --fix, down to an empty shape for the model where nothing is left."""
    text = bench.base.replace("dims: [4]", f"dims: {dims}").replace("dims: [3]", f"dims: {dims}")
    findings = lint(bench, tmp_path, text, graph)
    assert [each.rule for each in findings] == ["graph-dims-with-batch"] * 2
    (repaired,) = repairs(tmp_path / "model")
    repaired.write()
    assert list(read_config(repaired.file).input[0].dims) == after
    assert lint_file(repaired.file, tmp_path / "model") == []


def test_dimension_of_zero(bench: Any, tmp_path: Path) -> None:
    """A dimension of 0 is an error that says what is allowed."""
    text = bench.base.replace("dims: [4]", "dims: [0]")
    findings = lint(bench, tmp_path, text)
    assert findings[0].rule == "dims-invalid"
    assert "1 or more, or -1" in findings[0].message


def test_reshape_of_other_size(bench: Any, tmp_path: Path) -> None:
    """A reshape from [3, 32, 32] to [2, 3, 32, 32] is an error that shows both."""
    text = bench.base.replace("dims: [4]", "dims: [3, 32, 32] reshape { shape: [2, 3, 32, 32] }")
    finding = next(each for each in lint(bench, tmp_path, text) if each.rule == "reshape-count")
    assert "[3, 32, 32]" in finding.message
    assert "[2, 3, 32, 32]" in finding.message


def test_batch_axis_second(bench: Any, tmp_path: Path) -> None:
    """A graph [seq, batch, 4] is an error that suggests a transposing wrapper."""
    text = bench.base.replace("dims: [4]", "dims: [-1, 4]").replace("dims: [3]", "dims: [-1, 4]")
    findings = [each for each in lint(bench, tmp_path, text, "sequence_first") if each.level == "error"]
    assert "wrapper" in next(each for each in findings if each.rule == "graph-batch-elsewhere").fix


def test_odd_tensor_names(bench: Any, tmp_path: Path) -> None:
    """Names with slashes, colons and dots are compared verbatim, and survive a repair of something else."""
    names = ("in/put.1", "yolonms_layer_1/ExpandDims_1:0")
    text = bench.base.replace('"x"', f'"{names[0]}"').replace('"y"', f'"{names[1]}"')
    assert lint(bench, tmp_path / "a", text, "odd_names") == []
    lint(bench, tmp_path / "b", f'{text}name: "other"', "odd_names")
    (repaired,) = repairs(tmp_path / "b" / "model")
    repaired.write()
    config = read_config(repaired.file)
    assert (config.input[0].name, config.output[0].name) == names


def test_ensemble_is_not_the_place(bench: Any, tmp_path: Path) -> None:
    """An ensemble with an instance group, a larger batch than a step or a prioritised step is told where to put it."""
    bench.write_steps(tmp_path)
    text = bench.ensemble.replace("max_batch_size: 4", "max_batch_size: 16").replace('"first"', '"urgent"')
    bench.write_model(tmp_path, "ensemble", None, f"{text}instance_group {{ count: 2 }}")
    found = {each.rule: each for each in lint_repository(tmp_path, ["ensemble"])}
    assert found.keys() == {"ensemble-not-the-place", "step-max-batch", "ensemble-priority"}
    assert "move instance_group to the steps' models" in found["ensemble-not-the-place"].fix
    assert found["ensemble-priority"].level == "warning"


def test_batching_in_an_ensemble(bench: Any, tmp_path: Path) -> None:
    """dynamic_batching beside ensemble_scheduling is found, though the text does not even parse."""
    finding = only(lint(bench, tmp_path, f"{bench.ensemble}dynamic_batching {{ }}"), "two-schedulers")
    assert finding.fix == "remove dynamic_batching or ensemble_scheduling"


def test_step_without_batch_axis_is_exempt(bench: Any, tmp_path: Path) -> None:
    """A step with max_batch_size 0 does not limit the ensemble's."""
    bench.write_steps(tmp_path)
    config = tmp_path / "second" / "config.pbtxt"
    config.write_text(config.read_text().replace("max_batch_size: 8", "").replace("dims: [-1]", "dims: [-1, -1]"))
    bench.write_model(tmp_path, "ensemble", None, bench.ensemble)
    assert [each for each in lint_repository(tmp_path, ["ensemble"]) if each.level == "error"] == []


FORMS = {
    "block": "input { name: 'x' data_type: TYPE_FP32 dims: 4 }",
    "list": 'input [ { name: "x", data_type: TYPE_FP32, dims: [ 4 ] } ]',
    "colon": 'input: [{ name: "x" data_type: TYPE_FP32 dims: [4] }]',
    "comments": '# the input\ninput { # one\n  name: "x"\n  data_type: TYPE_FP32 dims: 4 # four\n}',
    "semicolons": 'input { name: "x"; data_type: TYPE_FP32; dims: 4; }',
}


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_forms_of_the_text(form: str, bench: Any, tmp_path: Path) -> None:
    """Every form of the text format, and platform instead of backend, means the same and has no finding."""
    lines = bench.base.splitlines()
    lines[2] = form
    assert lint(bench, tmp_path / "a", "\n".join(lines)) == []
    lines[0] = 'platform: "onnxruntime_onnx"'
    assert lint(bench, tmp_path / "b", "\n".join(lines)) == []
    bench.write_model(tmp_path / "c", "model", "linear", bench.base)
    configs = [normalised(_subject(tmp_path / folder / "model")) for folder in ("a", "b", "c")]
    assert differences(configs[0], configs[2]) == []
    assert differences(configs[1], configs[2]) == []


def _subject(model: Path) -> Any:
    return subject_of(model / "config.pbtxt", model, read_config(model / "config.pbtxt"))


@pytest.mark.parametrize(
    ("text", "place", "fix"),
    [
        ("max_batch_size: 8\nmax_batch: 4", ":2:1:", "write max_batch_size"),
        ("input { data_type: FP32 }", ":1:20:", "write TYPE_FP32"),
        ("instance_group [ { kind: GPU } ]", ":1:26:", "write KIND_GPU"),
        ("dynamic_batching { prefered_batch_size: [4] }", ":1:20:", "write preferred_batch_size"),
        ("max_batch_size 8", ":1:16:", "with a colon"),
        ('max_batch_size: "8"', ":1:17:", "without quotes"),
        ("name: x", ":1:7:", "double quotes"),
        ("input [ { name: 'x' },\n]", ":2:1:", "no comma after"),
        ("// a comment", ":1:1:", "a comment starts with #"),
    ],
)
def test_text_that_does_not_parse(text: str, place: str, fix: str, tmp_path: Path) -> None:
    """What the text format rejects gives file, line, column and how to write it."""
    file = tmp_path / "config.pbtxt"
    file.write_text(text)
    finding = parse(file)
    assert isinstance(finding, Finding)
    assert f"config.pbtxt{place}" in finding.message
    assert fix in finding.fix


def test_directory_name_and_versions(bench: Any, tmp_path: Path) -> None:
    """`name` other than the directory's, and a version directory called v1, are found with what to write."""
    model = bench.write_model(tmp_path, "resnet", "linear", f'{bench.base}name: "resnet50"')
    (model / "1").rename(model / "v1")
    found = {each.rule: each for each in lint_file(model / "config.pbtxt", model)}
    assert found.keys() == {"name-differs", "version-missing", "version-ignored"}
    assert found["name-differs"].fix == 'name: "resnet"'
    assert found["version-ignored"].fix == "rename it to 1"


@pytest.mark.parametrize(
    "content", ['metric_tags { key: "a" value: "é" }'.encode("latin1"), "\ufeffname: 'x'".encode()]
)
def test_file_that_is_not_plain_text(content: bytes, tmp_path: Path) -> None:
    """Latin-1, and UTF-8 with a byte order mark, are findings of their own."""
    file = tmp_path / "config.pbtxt"
    file.write_bytes(content)
    finding = parse(file)
    assert isinstance(finding, Finding)
    assert finding.rule == "not-text"


def test_variants_and_missing_configuration(bench: Any, tmp_path: Path) -> None:
    """Every variant is checked as if it were served, a name with a space is found, and so is a missing config.pbtxt."""
    model = bench.write_model(tmp_path, "model", "linear", bench.base)
    (model / "configs").mkdir()
    (model / "configs" / "two words.pbtxt").write_text(f"{bench.base}dynamic_batching {{ preferred_batch_size: 9 }}")
    assert [each.rule for each in lint_repository(tmp_path)] == ["variant-name", "preferred-over-max"]
    bare = bench.write_model(tmp_path, "bare", "linear", "")
    (bare / "config.pbtxt").unlink()
    assert only(lint_repository(tmp_path, ["bare"]), "config-missing").level == "warning"
