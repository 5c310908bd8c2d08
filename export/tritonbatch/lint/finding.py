"""What the linter says: a finding, and the rule that it comes from."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.lint.subject import Subject

Level = Literal["error", "warning"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing to change: *field* is its path in the configuration, *fix* is what to write instead."""

    file: Path
    field: str
    level: Level
    rule: str
    message: str
    fix: str


@dataclass(frozen=True, slots=True)
class Problem:
    """What a rule's check yields: the *field*, what it holds and what was expected, and what to write."""

    field: str
    message: str
    fix: str


Check = Callable[[Subject], Iterator[Problem]]
Repair = Callable[[Subject, ModelConfig], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A kind of finding. *about* is the sentence of the documentation; *repair* changes a configuration in place."""

    id: str
    level: Level
    about: str
    check: Check
    repair: Repair | None = None

    def findings(self, subject: Subject) -> Iterator[Finding]:
        """What this rule has to say about *subject*."""
        for problem in self.check(subject):
            yield Finding(
                file=subject.file,
                field=problem.field,
                level=self.level,
                rule=self.id,
                message=problem.message,
                fix=problem.fix,
            )


def error(identity: str, about: str, check: Check, repair: Repair | None = None) -> Rule:
    """A rule whose findings keep the model from loading, or from answering as its configuration says."""
    return Rule(id=identity, level="error", about=about, check=check, repair=repair)


def warning(identity: str, about: str, check: Check, repair: Repair | None = None) -> Rule:
    """A rule whose findings load, but not to the effect that was probably meant."""
    return Rule(id=identity, level="warning", about=about, check=check, repair=repair)
