"""What arrives: how many rows each request has, and how urgent it is. Drawn apart from when it arrives.

Each draw has a stream of random numbers of its own, so adding a mix never changes the arrival times, and changing one
mix never changes the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.arrivals import BATCH_STREAM, CLASS_STREAM, Schedule, stream
from tritonbatch.loadtest.pattern_text import whole_number

MOST_ROWS, MOST_PRIORITY = 2**32 - 1, 255
"""What the columns of a record hold."""

MOST_WEIGHT = 1e9

MIX_EXAMPLE, CLASSES_EXAMPLE = "1:0.8,8:0.2", "interactive=1:0.7,bulk=2:0.3"


@dataclass(frozen=True, slots=True, eq=False)
class Arrivals:
    """Requests in order of arrival, one array element each: nanoseconds from the start, rows, priority (0: default)."""

    at_ns: Schedule
    rows: npt.NDArray[np.uint32]
    priority: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.at_ns)

    @classmethod
    def at(cls, at_ns: Schedule) -> Arrivals:
        """One row of default priority at each of these moments."""
        return cls(at_ns, np.ones(len(at_ns), np.uint32), np.zeros(len(at_ns), np.uint8))


@dataclass(frozen=True, slots=True)
class Mix:
    """Batch sizes and the share of requests that has each; the shares sum to 1."""

    sizes: tuple[int, ...]
    shares: tuple[float, ...]

    @property
    def mean_rows(self) -> float:
        """Rows per request in expectation."""
        return sum(size * share for size, share in zip(self.sizes, self.shares, strict=True))


@dataclass(frozen=True, slots=True)
class Classes:
    """Named classes of requests: the priority of each, its share of the requests and the rows that one brings.

    The shares sum to 1; rows 0 leaves them as they are.
    """

    names: tuple[str, ...]
    priorities: tuple[int, ...]
    shares: tuple[float, ...]
    rows: tuple[int, ...] = ()

    def name_of(self, priority: int) -> str:
        """The class with this *priority*, or the number as text when no class has it."""
        return self.names[self.priorities.index(priority)] if priority in self.priorities else str(priority)


def mix(text: str) -> Mix:
    """Read ``SIZE:WEIGHT,SIZE:WEIGHT``, for example ``1:0.8,8:0.2``; weights need not sum to 1.

    Raises:
        InvalidInput: a size below 1 or given twice, or a weight that is not above 0.
    """
    pairs = [_pair(part, f"The batch mix {text!r}", MIX_EXAMPLE) for part in text.split(",")]
    sizes = [_whole(size, range(1, MOST_ROWS + 1), f"The batch mix {text!r}", MIX_EXAMPLE) for size, _ in pairs]
    _once(sizes, f"The batch mix {text!r}", MIX_EXAMPLE)
    return Mix(tuple(sizes), _shares([weight for _, weight in pairs]))


def classes(text: str) -> Classes:
    """Read ``NAME=PRIORITY:WEIGHT,...``, for example ``interactive=1:0.7,bulk=2:0.3``; weights need not sum to 1.

    ``NAME=PRIORITYxROWS:WEIGHT`` also says how many rows each request of the class brings, as ``bulk=2x8:0.3``.

    Raises:
        InvalidInput: a name or priority that is missing or given twice, or a weight that is not above 0.
    """
    what = f"The classes {text!r}"
    split = [part.partition("=") for part in text.split(",")]
    names = [name.strip() for name, _, _ in split]
    if not all(names) or not all(equals for _, equals, _ in split):
        raise _mistake(what, "name no class in one part: expected NAME=PRIORITY:WEIGHT", CLASSES_EXAMPLE)
    pairs = [_pair(rest, what, CLASSES_EXAMPLE) for _, _, rest in split]
    levels = [number.partition("x") for number, _ in pairs]
    priorities = [_whole(level, range(MOST_PRIORITY + 1), what, CLASSES_EXAMPLE) for level, _, _ in levels]
    rows = [_whole(size, range(1, MOST_ROWS + 1), what, CLASSES_EXAMPLE) if sign else 0 for _, sign, size in levels]
    _once(names, what, CLASSES_EXAMPLE)
    _once(priorities, what, CLASSES_EXAMPLE)  # records keep the number, so equal numbers could not be told apart
    return Classes(tuple(names), tuple(priorities), _shares([weight for _, weight in pairs]), tuple(rows))


def with_batches(arrivals: Arrivals, batches: Mix, seed: int) -> Arrivals:
    """*arrivals* with batch sizes drawn from *batches*; everything else stays.

    Raises:
        InvalidInput: the seed is negative.
    """
    drawn = _draw(batches.sizes, batches.shares, len(arrivals), stream(seed, BATCH_STREAM))
    return replace(arrivals, rows=drawn.astype(np.uint32))


def with_classes(arrivals: Arrivals, kinds: Classes, seed: int) -> Arrivals:
    """*arrivals* with priorities drawn from *kinds*, and the rows that a class brings; everything else stays.

    Raises:
        InvalidInput: the seed is negative.
    """
    drawn = _draw(kinds.priorities, kinds.shares, len(arrivals), stream(seed, CLASS_STREAM))
    rows = arrivals.rows.copy()
    for priority, size in zip(kinds.priorities, kinds.rows, strict=False):
        if size:
            rows[drawn == priority] = size
    return replace(arrivals, priority=drawn.astype(np.uint8), rows=rows)


def _draw(
    values: Sequence[int], shares: Sequence[float], count: int, rng: np.random.Generator
) -> npt.NDArray[np.int64]:
    drawn = np.searchsorted(np.cumsum(shares), rng.random(count), side="right")
    return np.array(values, np.int64)[np.minimum(drawn, len(values) - 1)]  # a sum of shares may round to below 1


def _pair(part: str, what: str, example: str) -> tuple[str, float]:
    value, _, weight = (piece.strip() for piece in part.partition(":"))
    try:
        number = float(weight)
    except ValueError:
        number = math.nan
    if not 0 < number <= MOST_WEIGHT:
        raise _mistake(what, f"has the weight {weight!r}: expected a number above 0 and up to {MOST_WEIGHT:g}", example)
    return value, number


def _whole(text: str, allowed: range, what: str, example: str) -> int:
    if (number := whole_number(text)) is None or number not in allowed:
        raise _mistake(what, f"has {text!r}: expected a whole number from {allowed[0]} to {allowed[-1]}", example)
    return number


def _once(values: Sequence[object], what: str, example: str) -> None:
    for value in values:
        if values.count(value) > 1:
            raise _mistake(what, f"has {value} twice: expected each once", example)


def _shares(weights: Sequence[float]) -> tuple[float, ...]:
    return tuple(weight / sum(weights) for weight in weights)


def _mistake(what: str, clause: str, example: str) -> InvalidInput:
    return InvalidInput(f"{what} {clause}; write for example {example}.")
