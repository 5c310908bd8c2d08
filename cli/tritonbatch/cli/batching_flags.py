"""Flags of ``tritonbatch export`` that hold more than one value, as text and as what they mean."""

from __future__ import annotations

from collections.abc import Sequence

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.priority import Priority, QueuePolicy

_EXAMPLE = "such as 1:timeout-us=200000,action=reject,max-queue=100"


def gpu_numbers(text: str | None) -> tuple[int, ...]:
    """``0,1`` as numbers; nothing for None.

    Raises:
        InvalidInput: it is not a list of whole numbers.
    """
    parts = [part.strip() for part in text.split(",")] if text is not None else []
    if not all(part.isascii() and part.isdigit() for part in parts):
        raise InvalidInput(f"--gpus is {text!r}: expected numbers separated by commas, such as 0,1.")
    return tuple(int(part) for part in parts)


def priority_of(levels: int | None, policies: Sequence[str]) -> Priority:
    """The priority settings for *levels* (two by default) and one ``LEVEL:key=value,…`` for each level with a policy.

    Raises:
        InvalidInput: a policy cannot be read, or a level has two.
    """
    found: dict[int, QueuePolicy] = {}
    for text in policies:
        level, _, rest = text.partition(":")
        if not level.isdigit() or int(level) in found:
            raise InvalidInput(f"--level is {text!r}: expected one LEVEL:key=value,… for each level, {_EXAMPLE}.")
        found[int(level)] = _policy(text, rest)
    return Priority(levels=2 if levels is None else levels, policies=found)


def _policy(text: str, rest: str) -> QueuePolicy:
    pairs = dict(part.partition("=")[::2] for part in rest.split(","))
    known = {"timeout-us", "action", "max-queue"}
    numbers = [pairs.get(key, "0") for key in ("timeout-us", "max-queue")]
    if not pairs.keys() <= known or not all(number.isascii() and number.isdigit() for number in numbers):
        raise InvalidInput(f"--level is {text!r}: expected {', '.join(sorted(known))} with whole numbers, {_EXAMPLE}.")
    return QueuePolicy(
        timeout_us=int(numbers[0]), timeout_action=pairs.get("action", "reject").upper(), max_queue_size=int(numbers[1])
    )
