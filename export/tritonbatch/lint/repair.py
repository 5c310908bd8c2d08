"""Apply the repairs that cannot change what a configuration means, other than to make it load or to say it plainly."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from pathlib import Path

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.lint.finding import Finding
from tritonbatch.lint.linter import RULES, config_files, subject_of
from tritonbatch.lint.parse import parse
from tritonbatch.lint.subject import Subject
from tritonbatch.repository.config import config_text
from tritonbatch.repository.layout import write_text_keeping_copy

# A repair can make room for another: renamed to the graph's tensor, its type and dims become comparable.
ROUNDS = 4


@dataclass(frozen=True, slots=True)
class Repaired:
    """A file, its text before and after, and the rules whose findings went away."""

    file: Path
    before: str
    after: str
    rules: tuple[str, ...]

    @property
    def diff(self) -> str:
        """The change as a unified diff."""
        lines = self.before.splitlines(keepends=True), self.after.splitlines(keepends=True)
        return "".join(difflib.unified_diff(*lines, fromfile=str(self.file), tofile=f"{self.file} (repaired)"))

    def write(self) -> None:
        """Put the new text in place; the old one stays beside it as ``.bak``."""
        write_text_keeping_copy(self.file, self.after)


def repairs(model: Path) -> list[Repaired]:
    """What can be repaired in the configurations of the model directory *model*; writes nothing."""
    return [repaired for file in config_files(model) if file.is_file() and (repaired := _repaired(file, model))]


def _repaired(file: Path, model: Path) -> Repaired | None:
    config = parse(file)
    if isinstance(config, Finding):
        return None
    changed, rules = repaired_config(subject_of(file, model, config))
    if changed == config:
        return None
    before = file.read_text(encoding="utf-8")
    return Repaired(file, before, config_text(changed, _header(before)), rules)


def repaired_config(subject: Subject) -> tuple[ModelConfig, tuple[str, ...]]:
    """The configuration of *subject* with every safe repair, and the rules that asked for one."""
    config = ModelConfig()
    config.CopyFrom(subject.config)
    asked: dict[str, None] = {}
    for _ in range(ROUNDS):
        current = replace(subject, config=_copy(config))
        for rule in RULES:
            if rule.repair is not None and any(rule.findings(current)):
                rule.repair(current, config)
                asked[rule.id] = None
        if config == current.config:
            break
    return config, tuple(asked)


def _copy(config: ModelConfig) -> ModelConfig:
    copy = ModelConfig()
    copy.CopyFrom(config)
    return copy


def _header(text: str) -> str:
    """The comment lines at the top of *text*, without their signs."""
    lines = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").removeprefix(" "))
    return "\n".join(lines)
