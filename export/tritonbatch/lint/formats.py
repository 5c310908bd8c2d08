"""Findings as text for people, JSON for scripts, and SARIF 2.1.0 for code review."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any
from urllib.parse import quote

from tritonbatch.lint.finding import Finding
from tritonbatch.lint.linter import RULES, TOPICS
from tritonbatch.lint.parse import ABOUT

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
CONFIG_MISSING = "A model has no config.pbtxt, so Triton decides everything."


def rule_descriptions() -> dict[str, tuple[str, str]]:
    """Level and description of every rule, by id."""
    text_rules = {rule: ("error", about) for rule, about in ABOUT.items()}
    others = {rule.id: (str(rule.level), rule.about) for rule in RULES}
    return {**text_rules, "config-missing": ("warning", CONFIG_MISSING), **others}


def rules_as_markdown() -> str:
    """The tables of docs/lint.md: every rule by topic, and whether `--fix` repairs it."""
    about = rule_descriptions()
    parts = [_table("The file", [(rule, *about[rule], "") for rule in (*ABOUT, "config-missing")])]
    for topic, rules in TOPICS.items():
        parts.append(_table(topic, [(each.id, each.level, each.about, "yes" if each.repair else "") for each in rules]))
    return "\n\n".join(parts)


def _table(topic: str, rows: Sequence[tuple[str, str, str, str]]) -> str:
    lines = [f"| `{rule}` | {level} | {about} | {fixed} |" for rule, level, about, fixed in rows]
    return "\n".join(
        [f"### {topic}", "", "| rule | level | what it finds | `--fix` |", "| :-- | :-- | :-- | :-- |", *lines]
    )


def as_text(findings: Sequence[Finding]) -> str:
    """A line for each finding, its fix below, and a sum."""
    lines = []
    for each in findings:
        field = f" {each.field}:" if each.field else ""
        lines.append(f"{each.file}:{field} {each.level}: {each.message} ({each.rule})\n    fix: {each.fix}")
    levels = Counter(each.level for each in findings)
    lines.append(", ".join(_counted(levels[level], level) for level in ("error", "warning")))
    return "\n".join(lines)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def as_json(findings: Sequence[Finding]) -> str:
    """A list of objects with file, field, level, rule, message and fix."""
    return json.dumps([{**asdict(each), "file": str(each.file)} for each in findings], indent=2)


def as_sarif(findings: Sequence[Finding]) -> str:
    """A SARIF 2.1.0 log of one run."""
    used = sorted({each.rule for each in findings})
    about = rule_descriptions()
    driver = {
        "name": "tritonbatch lint",
        "informationUri": "https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md",
        "rules": [{"id": rule, "shortDescription": {"text": about[rule][1]}} for rule in used],
    }
    run = {"tool": {"driver": driver}, "results": [_result(each, used.index(each.rule)) for each in findings]}
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2)


def _result(finding: Finding, index: int) -> dict[str, Any]:
    location: dict[str, Any] = {"physicalLocation": {"artifactLocation": {"uri": quote(finding.file.as_posix())}}}
    if finding.field:
        location["logicalLocations"] = [{"fullyQualifiedName": finding.field}]
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.level,
        "message": {"text": f"{finding.message}; {finding.fix}"},
        "locations": [location],
    }
