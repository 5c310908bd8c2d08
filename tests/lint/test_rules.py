"""Every rule on one small case."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tritonbatch.lint.formats import rule_descriptions
from tritonbatch.lint.linter import lint_file, lint_repository


def test_case(case: Any, bench: Any, tmp_path: Path) -> None:
    """A case yields its rule at its field, at the documented level, with a message that says what was expected."""
    bench.write_steps(tmp_path)
    model = case.write(tmp_path, "model")
    findings = lint_file(model / "config.pbtxt", model)
    found = [
        each
        for each in findings
        if (each.rule, each.field) == (case.rule, case.field) or (each.rule == case.rule and not case.field)
    ]
    assert found, findings
    assert found[0].level == rule_descriptions()[case.rule][0]
    assert found[0].fix
    assert "expected" in found[0].message.lower() or found[0].level == "warning"


def test_every_rule_has_a_case(bench: Any) -> None:
    """The table has a case for every rule that the linter can give, and no other."""
    assert {case.rule for case in bench.cases} == set(rule_descriptions())


def test_valid_base(bench: Any, tmp_path: Path) -> None:
    """The configurations that cases start from have no finding at all."""
    bench.write_steps(tmp_path)
    bench.write_model(tmp_path, "model", "linear", bench.base)
    bench.write_model(tmp_path, "ensemble", None, bench.ensemble)
    assert lint_repository(tmp_path) == []
