"""The text form ``kind:key=value,key=value`` of a pattern: split, and its values checked one by one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from tritonbatch.errors import InvalidInput

LEAST, MOST = 1e-9, 1e12
"""Rates and lengths beyond these are mistakes, and would leave the range of the numbers computed from them."""


def whole_number(text: str) -> int | None:
    """The number that *text* spells in at most 18 digits, or None."""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 18 else None


@dataclass(frozen=True, slots=True)
class Fields:
    """The keys of one pattern; every mistake becomes a sentence that quotes *text* and shows *example*."""

    text: str
    example: str
    values: Mapping[str, str]

    def mistake(self, what: str) -> InvalidInput:
        """The error to raise for *what* is wrong, a clause with what was got and what is expected."""
        return InvalidInput(f"The pattern {self.text!r} {what}; write for example {self.example}.")

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def positive(self, key: str) -> float:
        """The number of *key*, above 0."""
        number = self._number(key, self.values[key])
        if number < LEAST:
            raise self.mistake(f"has {key}={self.values[key]}: expected a number above 0 (at least {LEAST:g})")
        return number

    def rate(self, key: str, default: str = "0") -> float:
        """The number of *key*, 0 allowed."""
        return self._rate(key, self.values.get(key, default))

    def rates(self, key: str) -> list[float]:
        """The numbers of *key*, separated by slashes, 0 allowed."""
        return [self._rate(key, part) for part in self.values[key].split("/")]

    def count(self, key: str) -> int:
        """The whole number of *key*, at least 1."""
        text = self.values[key]
        if (number := whole_number(text)) is None or number < 1:
            raise self.mistake(f"has {key}={text}: expected a whole number of at least 1")
        return number

    def _rate(self, key: str, text: str) -> float:
        number = self._number(key, text)
        if number < 0:
            raise self.mistake(f"has {key}={self.values[key]}: expected no number below 0")
        return number

    def _number(self, key: str, text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not abs(number) <= MOST:  # NaN neither
            raise self.mistake(f"has {key}={self.values[key]}: expected a number of at most {MOST:g}")
        return number


def kind_of(text: str, examples: Mapping[str, str]) -> tuple[str, str]:
    """The kind of a pattern and what follows its colon.

    Raises:
        InvalidInput: the kind is none of *examples* (kind to a right text).
    """
    kind, _, rest = text.strip().partition(":")
    if kind not in examples:
        known = ", ".join(examples)
        raise InvalidInput(
            f"The pattern {text!r} has the kind {kind!r}: expected one of {known}; "
            f"write for example {next(iter(examples.values()))}."
        )
    return kind, rest


def fields_of(rest: str, blank: Fields, keys: Collection[str], optional: Collection[str] = ()) -> Fields:
    """*blank* with the values of *rest*: each of *keys* once, and of *optional* at most once.

    Raises:
        InvalidInput: a key is unknown, missing or given twice, or there is no ``=``.
    """
    values: dict[str, str] = {}
    for part in rest.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise blank.mistake(f"has {part!r} where KEY=VALUE is expected")
        if key not in {*keys, *optional}:
            raise blank.mistake(f"has the unknown key {key!r}: expected {', '.join([*keys, *optional])}")
        if key in values:
            raise blank.mistake(f"has {key} twice: expected it once")
        values[key] = value
    for key in keys:
        if key not in values:
            raise blank.mistake(f"lacks {key}: expected {', '.join(keys)}")
    return Fields(blank.text, blank.example, values)
