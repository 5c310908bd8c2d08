"""Tensors that the caller names for a module or a TorchScript file, which do not say them themselves: text to specs."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from tritonbatch.errors import InvalidInput
from tritonbatch.models.data_types import KNOWN
from tritonbatch.models.model import TensorSpec

_ALIASES = {
    "BYTES": "STRING",
    "FLOAT": "FP32",
    "FLOAT16": "FP16",
    "FLOAT32": "FP32",
    "FLOAT64": "FP64",
    "LONG": "INT64",
}
_EXAMPLE = "features:FP32:512 or image:FP32:3x32x32, without the batch axis, -1 for a free size"


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller says about a model: its *inputs* in order, and the names of its *outputs* (may be left out)."""

    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.outputs)


def parse_given(inputs: Sequence[str], outputs: Sequence[str] = ()) -> Given:
    """Read inputs written as ``NAME:TYPE:DIMS`` and names of outputs.

    Raises:
        InvalidInput: One is not written so, or a name comes twice.
    """
    given = Given(tuple(parse_input(text) for text in inputs), tuple(outputs))
    for kind, names in (("input", [spec.name for spec in given.inputs]), ("output", list(given.outputs))):
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise InvalidInput(f"the {kind} {twice[0]!r} is given twice, expected different names; leave one out")
    return given


def parse_input(text: str) -> TensorSpec:
    """Read ``NAME:TYPE:DIMS``; the name may hold colons itself, DIMS are joined by ``x`` or commas.

    Raises:
        InvalidInput: The text is not of that form; says which part is wrong.
    """
    # From the right, since names of exporters end in ":0".
    parts = text.rsplit(":", 2)
    if len(parts) != 3 or not all(part.strip() for part in parts):
        raise InvalidInput(
            f"the input {text!r} is not a tensor, expected NAME:TYPE:DIMS such as {_EXAMPLE}; write it so"
        )
    return TensorSpec(parts[0], _data_type(text, parts[1].strip()), _dims(text, parts[2].strip()))


def _data_type(text: str, name: str) -> str:
    short = name.upper().removeprefix("TYPE_")
    short = _ALIASES.get(short, short)
    if f"TYPE_{short}" in KNOWN:
        return f"TYPE_{short}"
    known = sorted(each.removeprefix("TYPE_") for each in KNOWN)
    close = difflib.get_close_matches(short, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "use Triton's name of the type"
    raise InvalidInput(f"the input {text!r} has type {name!r}, expected one of {', '.join(known)}; {hint}")


def _dims(text: str, written: str) -> tuple[int, ...]:
    try:
        dims = tuple(int(part) for part in written.replace("x", ",").split(","))
    except ValueError:
        dims = (0,)
    if any(size < 1 and size != -1 for size in dims):
        raise InvalidInput(
            f"the input {text!r} has the dims {written!r}, expected whole numbers of at least 1, or -1, such as "
            f"{_EXAMPLE}; correct them"
        )
    return dims
