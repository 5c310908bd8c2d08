"""What an engine is built with: its precision, the shapes that it has to serve, and how far it may travel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput

PRECISIONS = ("fp32", "fp16", "bf16", "int8")
PLAN_FILE = "model.plan"
Range = tuple[int, int, int]
"""The smallest, the usual and the largest size of a free axis."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The smallest, the usual and the largest shape of an input, batch axis included."""

    name: str
    smallest: tuple[int, ...]
    usual: tuple[int, ...]
    largest: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSettings:
    """One engine: *onnx_file* and *timing_cache* are names in the folder that it is built in.

    *version_compatible* lets later TensorRT of the same major version run it, with
    ``--backend-config=tensorrt,version-compatible=true``. *hardware_compatible* lets Ampere and later GPUs share it,
    at some cost in speed. Otherwise it runs on the TensorRT and the kind of GPU that built it, nowhere else.
    """

    onnx_file: str
    precision: str
    profiles: tuple[Profile, ...]
    workspace_mib: int = 4096
    timing_cache: str = "timing.cache"
    version_compatible: bool = False
    hardware_compatible: bool = False

    def __post_init__(self) -> None:
        check_precision(self.precision)
        if self.workspace_mib < 1:
            raise InvalidInput(f"The workspace is {self.workspace_mib} MiB: expected at least 1.")

    def as_record(self) -> dict[str, Any]:
        """The settings as they stand in the metadata beside the engine."""
        return asdict(self)


def check_precision(precision: str) -> None:
    """Refuse a precision that is none.

    Raises:
        InvalidInput: it is not one of ``PRECISIONS``.
    """
    if precision not in PRECISIONS:
        raise InvalidInput(f"The precision is {precision!r}: expected one of {', '.join(PRECISIONS)}; choose one.")


def parse_free_sizes(texts: Sequence[str]) -> dict[str, Range]:
    """Read sizes of free axes: ``8,32,128`` for every input (under the name ``""``), or ``NAME=8,32,128`` for one.

    Raises:
        InvalidInput: a text is not three rising whole numbers of at least 0, or an input comes twice.
    """
    found: dict[str, Range] = {}
    for text in texts:
        name, _, written = text.rpartition("=")
        try:
            smallest, usual, largest = (int(part) for part in written.split(","))
        except ValueError:
            smallest, usual, largest = 0, -1, -1
        if not 0 <= smallest <= usual <= largest or largest < 1:
            raise InvalidInput(
                f"The sizes {text!r} are no range: expected MIN,USUAL,MAX or INPUT=MIN,USUAL,MAX, rising, such as "
                "8,32,128; correct them."
            )
        if name in found:
            raise InvalidInput(f"The sizes of {name or 'every input'} are given twice: expected once; leave one out.")
        found[name] = (smallest, usual, largest)
    return found


def profiles(
    config: ModelConfig, free_sizes: Mapping[str, Range], *, usual_batch: int | None = None
) -> tuple[Profile, ...]:
    """One profile for each input of *config*: batches from 1 to max_batch_size, tuned for *usual_batch*.

    That is the largest preferred batch size unless given, and max_batch_size without one. Free axes take their
    range from *free_sizes*, by the input's name or ``""``.

    Raises:
        InvalidInput: the model does not batch, the usual batch is outside, or a free axis has no range.
    """
    largest = config.max_batch_size
    if largest < 1:
        raise InvalidInput(f"{config.name} has max_batch_size {largest}: expected at least 1; export it with batching.")
    usual = usual_batch or max(config.dynamic_batching.preferred_batch_size, default=largest)
    if not 1 <= usual <= largest:
        raise InvalidInput(f"The usual batch is {usual}: expected 1 to {largest} (max_batch_size); change one.")
    unknown = sorted(set(free_sizes) - {""} - {tensor.name for tensor in config.input})
    if unknown:
        names = ", ".join(tensor.name for tensor in config.input)
        raise InvalidInput(f"{config.name} has no input {unknown[0]!r}: expected one of {names}; correct the sizes.")
    batches = (1, usual, largest)
    return tuple(_profile(tensor.name, tuple(tensor.dims), batches, free_sizes) for tensor in config.input)


def _profile(name: str, dims: tuple[int, ...], batches: Range, free_sizes: Mapping[str, Range]) -> Profile:
    free = free_sizes.get(name, free_sizes.get(""))
    if -1 in dims and free is None:
        raise InvalidInput(
            f"Input {name!r} has the free size -1 in {list(dims)}: expected its smallest, usual and largest size, "
            f"since an engine is built for a range; add --sizes {name}=8,32,128 with the sizes that you serve."
        )
    shapes = [(b, *(free[i] if d == -1 and free else d for d in dims)) for i, b in enumerate(batches)]
    return Profile(name, *shapes)
