"""What the linter repairs works on the real Triton, and what can end a server is tried on one of its own."""

from __future__ import annotations

import contextlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tritonbatch.lint.linter import RULES, lint_file
from tritonbatch.lint.repair import repairs

pytestmark = pytest.mark.triton

PARALLEL_LOADS = 4


def errors(model: Path) -> set[str]:
    """The rules behind the errors in a model's config.pbtxt."""
    return {each.rule for each in lint_file(model / "config.pbtxt", model) if each.level == "error"}


def test_fatal_errors_do_not_load(bench: Any, tmp_path: Path) -> None:
    """What can end the server is an error for the linter, and on a server of its own it does not load."""
    cases = [case for case in bench.cases if case.triton == "fatal"]
    assert {case.rule for case in cases} == {"batch-output-without-target", "warmup-over-max"}
    for case in cases:
        model = case.write(tmp_path / case.rule, "model")
        assert case.rule in errors(model)
        with bench.serve(model.parent) as judge, contextlib.suppress(OSError):  # the server has gone
            assert judge.load("model")


def test_repaired_models_work(bench: Any, judge: Any) -> None:
    """Each case whose rule has a repair works on the server once it is applied, and the linter has no error left."""
    repairable = {rule.id for rule in RULES if rule.repair is not None and rule.level == "error"}
    cases = [case for case in bench.cases if case.rule in repairable]
    bench.write_steps(judge.repository)
    models = [case.write(judge.repository, f"repaired_{index}") for index, case in enumerate(cases)]
    assert {case.rule for case in cases} == repairable
    for model in models:
        for repaired in repairs(model):
            repaired.write()
        assert errors(model) == set()
    with ThreadPoolExecutor(PARALLEL_LOADS) as pool:
        verdicts = dict(
            zip([case.rule for case in cases], pool.map(judge.verdict, (m.name for m in models)), strict=True)
        )
    assert {rule: verdict for rule, verdict in verdicts.items() if verdict} == {}
