"""A gate's result for machines and for people: JUnit XML, JSON and Markdown."""

from __future__ import annotations

import dataclasses
import math
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

from tritonbatch.observe.gate import Finding, Result
from tritonbatch.whole_file import whole_file

SUITE = "tritonbatch gate"
_NOT_XML = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def junit(result: Result, subject: str) -> str:
    """JUnit XML: a test case per finding of *subject* (model and variant); regressions and missed objectives fail."""
    failing = sum(finding.fails for finding in result.findings)
    suite = ET.Element("testsuite", name=SUITE, tests=str(len(result.findings)), failures=str(failing), errors="0")
    for finding in result.findings:
        case = ET.SubElement(suite, "testcase", classname=_xml(subject), name=_xml(finding.name))
        if finding.fails:
            ET.SubElement(case, "failure", type=finding.outcome, message=_xml(finding.sentence))
        else:
            ET.SubElement(case, "system-out").text = _xml(finding.sentence)
    if result.notes:
        ET.SubElement(suite, "system-out").text = _xml("\n".join(result.notes))
    root = ET.Element("testsuites", tests=str(len(result.findings)), failures=str(failing))
    root.append(suite)
    ET.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + ET.tostring(root, encoding="unicode") + "\n"


def plain(result: Result, subject: str) -> dict[str, Any]:
    """The result as JSON-ready values; what is not a finite number becomes null."""
    findings = [{name: _finite(value) for name, value in dataclasses.asdict(f).items()} for f in result.findings]
    return {
        "subject": subject,
        "passed": result.passed,
        "sentence": result.sentence,
        "findings": findings,
        "notes": list(result.notes),
    }


def markdown(result: Result, subject: str) -> str:
    """A heading, the sentence and a table, as a pull request shows it."""
    lines = [
        f"### Gate of {_escape(subject)}: {'passed' if result.passed else 'failed'}",
        "",
        _escape(result.sentence),
        "",
        "| finding | outcome | before | after | change | 95 % | what was seen |",
        "| :-- | :-- | --: | --: | --: | :-- | :-- |",
        *(_row(finding) for finding in result.findings),
    ]
    if result.notes:
        lines += ["", *(f"- {_escape(note)}" for note in result.notes)]
    return "\n".join(lines) + "\n"


def write_text(path: Path, text: str) -> None:
    """Write *text* to *path*, whole or not at all, in a folder that is made if need be."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def cells(finding: Finding) -> tuple[str, ...]:
    """Before, after, change and its interval, as text; empty where there is none."""
    change = "" if finding.change is None else f"{finding.change:+.1%}"
    interval = "" if finding.low is None or finding.high is None else f"{finding.low:+.1%} to {finding.high:+.1%}"
    return _number(finding.before, finding.unit), _number(finding.after, finding.unit), change, interval


def _row(finding: Finding) -> str:
    outcome = f"**{finding.outcome}**" if finding.fails else finding.outcome
    return "| " + " | ".join([_escape(finding.name), outcome, *cells(finding), _escape(finding.sentence)]) + " |"


def _number(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:.2%}" if unit == "of the requests" else f"{value:,.4g} {unit}"


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _xml(text: str) -> str:
    """*text* without the characters that XML 1.0 cannot hold, not even escaped."""
    return _NOT_XML.sub("�", text)


def _escape(text: str) -> str:
    """*text* without any meaning to Markdown or HTML, on one line."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return "".join(f"\\{c}" if c in "\\|`*[]" else c for c in " ".join(text.split()))
