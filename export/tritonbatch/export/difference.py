"""How far two runs of the same rows are apart, and whether that is rounding.

For values *a* and the expected *b*, each pair passes when |a - b| ≤ atol + rtol·|b|. The relative difference reported
is max |a - b| / max |b| over an output: single values near zero have no digits to compare.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tritonbatch.errors import ExportRejected

Outputs = dict[str, npt.NDArray[Any]]

# By kind and bytes of the type; integers, booleans and text have to be equal.
_TOLERANCES: Mapping[str, tuple[float, float]] = {"f2": (1e-2, 1e-2), "f4": (1e-4, 1e-3), "f8": (1e-7, 1e-6)}


@dataclass(frozen=True, slots=True)
class Difference:
    """The largest differences over all outputs between two runs of *batch* rows."""

    batch: int
    absolute: float
    relative: float


def tolerance(values: npt.NDArray[Any]) -> tuple[float, float]:
    """Absolute and relative tolerance (atol, rtol) for values of the type of *values*."""
    return _TOLERANCES.get(values.dtype.str[1:], (0.0, 0.0))


def compare(got: Outputs, expected: Outputs, fault: str, next_step: str) -> Difference:
    """The largest differences between outputs by name, batch on axis 0.

    Raises:
        ExportRejected: One differs by more than rounding; *fault* says between what, *next_step* what to do.
    """
    worst = Difference(0, 0.0, 0.0)
    for name, values in got.items():
        if values.shape != expected[name].shape:
            raise ExportRejected(
                f"output {name!r} {fault}: got shape {list(values.shape)}, expected {list(expected[name].shape)}; "
                f"{next_step}"
            )
        distance, size = _distance(values, expected[name])
        atol, rtol = tolerance(values)
        if np.any(distance > atol + rtol * size):
            raise ExportRejected(f"{_sentence(name, values, expected[name], distance, fault)}; {next_step}")
        absolute = float(distance.max(initial=0.0))
        relative = absolute / (float(size.max(initial=0.0)) or 1.0)
        worst = Difference(len(values), max(worst.absolute, absolute), max(worst.relative, relative))
    return worst


def _distance(got: npt.NDArray[Any], expected: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """|got - expected| and |expected|; equal values are 0 apart, infinities and NaN included."""
    if got.dtype.kind in "OUS":
        return np.where(got == expected, 0.0, np.inf), np.zeros(got.shape)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        distance = np.where(same, 0.0, np.abs(a - b))
    # A NaN or an infinity on one side only is no rounding: NaN would pass every comparison.
    finite = np.isfinite(a) & np.isfinite(b)
    return np.where(same | finite, distance, np.inf), np.where(np.isfinite(b), np.abs(b), 0.0)


def _sentence(
    name: str, got: npt.NDArray[Any], expected: npt.NDArray[Any], distance: npt.NDArray[Any], fault: str
) -> str:
    atol, rtol = tolerance(got)
    at = np.unravel_index(int(np.argmax(distance)), distance.shape)
    allowed = f"within {atol:g} + {rtol:g} of the value" if atol else "exactly"
    place = ", ".join(str(int(index)) for index in at)
    return f"output {name!r} {fault}: got {got[at]} at [{place}], expected {expected[at]} {allowed}"
