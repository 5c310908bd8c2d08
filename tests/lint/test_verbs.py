"""`tritonbatch lint` and `tritonbatch diff` as verbs: what they print, write and return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from tritonbatch.cli import diff, lint
from tritonbatch.errors import InvalidInput
from tritonbatch.lint.formats import rule_descriptions, rules_as_markdown

ROOT = Path(__file__).parents[2]
RUNNER = CliRunner()
app = typer.Typer()
app.command(name="lint")(lint.lint)
app.command(name="diff")(diff.diff)


def run(*arguments: str | Path) -> Result:
    """Run the command line in this process."""
    return RUNNER.invoke(app, [str(each) for each in arguments])


@pytest.fixture
def faulty(bench: Any, tmp_path: Path) -> Path:
    """A repository whose one model has two faults, one of which can be repaired."""
    text = f"# for the shop\n{bench.base}dynamic_batching {{ preferred_batch_size: [16, 4] }}".replace("[3]", "[1, 3]")
    bench.write_model(tmp_path, "model", "linear", text)
    return tmp_path


def test_text_and_exit_code(faulty: Path) -> None:
    """Findings say file, field, level, what, rule and fix; an error makes the exit code 1."""
    result = run("lint", faulty)
    assert result.exit_code == 1
    assert "config.pbtxt: dynamic_batching.preferred_batch_size[0]: error: " in result.stdout
    assert "(preferred-over-max)\n    fix: remove 16" in result.stdout
    assert result.stdout.endswith("2 errors, 1 warning\n")


def test_warnings_exit_with_zero(bench: Any, tmp_path: Path) -> None:
    """A repository with warnings only, or clean, exits with 0."""
    bench.write_model(tmp_path, "model", "linear", bench.base.replace("count: 1", ""))
    result = run("lint", tmp_path, "model")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "0 errors, 1 warning")


def test_json(faulty: Path) -> None:
    """JSON is a list of objects with exactly the six keys."""
    findings = json.loads(run("lint", faulty, "--format", "json").stdout)
    assert len(findings) == 3
    assert all(set(each) == {"file", "field", "level", "rule", "message", "fix"} for each in findings)


def test_sarif(faulty: Path) -> None:
    """SARIF 2.1.0 names the tool, describes every rule that is used, and points to the file."""
    log = json.loads(run("lint", faulty, "--format", "sarif").stdout)
    (found,) = log["runs"]
    assert log["version"] == "2.1.0"
    rules = found["tool"]["driver"]["rules"]
    for result in found["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] in {"error", "warning"}
        assert result["message"]["text"]
        assert result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"].endswith("model/config.pbtxt")


def test_fix(faulty: Path) -> None:
    """--fix shows a diff, keeps the header and the old file, leaves no error, and does nothing the second time."""
    file = faulty / "model" / "config.pbtxt"
    before = file.read_text()
    result = run("lint", faulty, "--fix")
    assert result.exit_code == 0
    assert "-dynamic_batching { preferred_batch_size: [16, 4] }" in result.stdout
    assert "repaired preferred-over-max, preferred-unsorted, graph-dims-with-batch" in result.stdout
    assert file.read_text().startswith("# for the shop\n")
    assert file.with_name("config.pbtxt.bak").read_text() == before
    assert run("lint", faulty, "--fix").stdout == "0 errors, 0 warnings\n"


@pytest.mark.parametrize("arguments", [("nowhere",), (".", "absent")])
def test_wrong_path(arguments: tuple[str, ...], faulty: Path) -> None:
    """A repository or model that does not exist is a mistake, which ends with 2."""
    result = run("lint", faulty / arguments[0], *arguments[1:])
    assert isinstance(result.exception, InvalidInput)
    assert result.exception.exit_code == 2


def test_a_model_for_a_repository(faulty: Path) -> None:
    """Giving a model instead of the repository says which folder was meant."""
    result = run("lint", faulty / "model")
    assert isinstance(result.exception, InvalidInput)
    assert f"give {faulty}" in str(result.exception)


def test_diff_ignores_what_means_the_same(bench: Any, tmp_path: Path) -> None:
    """Names, order of sets, defaults written out and preferred = max are no difference."""
    short = bench.base.replace("count: 1", "") + "dynamic_batching { }"
    long = (
        'output { name: "y" data_type: TYPE_FP32 dims: [3] }\n'
        + bench.base.replace('output { name: "y" data_type: TYPE_FP32 dims: [3] }\n', "").replace(
            "count: 1", "count: 2"
        )
        + 'name: "b" dynamic_batching { preferred_batch_size: [8, 8] max_queue_delay_microseconds: 0 }'
        + "version_policy { latest { num_versions: 1 } } optimization { input_pinned_memory { enable: true } }"
    )
    one = bench.write_model(tmp_path, "a", "linear", short)
    other = bench.write_model(tmp_path, "b", "linear", long)
    result = run("diff", one, other / "config.pbtxt")
    assert (result.exit_code, "mean the same" in result.stdout) == (0, True)


def test_diff_names_fields(bench: Any, tmp_path: Path) -> None:
    """What differs is printed field by field with both values, and the exit code is 1."""
    one = bench.write_model(tmp_path, "a", "linear", f"{bench.base}dynamic_batching {{ preferred_batch_size: [4] }}")
    other = bench.write_model(tmp_path, "b", "linear", f"{bench.base}sequence_batching {{ }}".replace("[4]", "[5]"))
    result = run("diff", one, other)
    assert result.exit_code == 1
    assert "dynamic_batching.preferred_batch_size: [4] | (not set)" in result.stdout
    assert "sequence_batching: (not set) | { }" in result.stdout
    assert 'input["x"].dims: [4] | [5]' in result.stdout


def test_diff_of_nothing(tmp_path: Path) -> None:
    """A path without a configuration is a mistake."""
    assert isinstance(run("diff", tmp_path, tmp_path).exception, InvalidInput)


def test_documentation_lists_every_rule() -> None:
    """docs/lint.md holds the generated tables, so every rule with its level and description."""
    text = (ROOT / "docs" / "lint.md").read_text(encoding="utf-8")
    assert rules_as_markdown() in text
    assert all(f"`{rule}`" in text for rule in rule_descriptions())


def test_pre_commit_hook_runs_the_verb() -> None:
    """The hook is called tritonbatch-lint and runs `tritonbatch lint` on the repository, not on single files."""
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    assert "- id: tritonbatch-lint\n" in text
    assert "entry: tritonbatch lint\n" in text
    assert "pass_filenames: false" in text
