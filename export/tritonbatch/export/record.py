"""What is known about an exported version: ``Built`` in the program, export.json on disk."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tritonbatch.export.difference import Difference
from tritonbatch.export.fingerprint import sha256, tool_versions
from tritonbatch.export.onnx_file import MODEL_FILE, WEIGHTS_PATTERN
from tritonbatch.export.verify import Verification
from tritonbatch.models.model import TensorSpec

RECORD_FILE = "export.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A version that is in place: *path* is its model.onnx, *seconds* what this call took, skipped or not."""

    path: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    verification: Verification
    rebuilt: bool
    seconds: float


@dataclass(frozen=True, slots=True)
class Origin:
    """What a version is made from. *recipe* is the hash of a built-in model's ingredients, empty for any other."""

    model: str
    fingerprint: str
    recipe: str
    opset: int


def write_record(version_directory: Path, origin: Origin, built: Built) -> None:
    """Write export.json beside the model.onnx that it describes."""
    record = {
        **asdict(origin),
        "sha256": _hashes(version_directory),
        "versions": tool_versions(),
        "inputs": [asdict(spec) for spec in built.inputs],
        "outputs": [asdict(spec) for spec in built.outputs],
        "verification": asdict(built.verification),
        "seconds": round(built.seconds, 3),
        "created": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
    }
    (version_directory / RECORD_FILE).write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def read_current(version_directory: Path, max_batch_size: int, wanted: Mapping[str, str]) -> Built | None:
    """The version in place, if its record has the *wanted* entries and its files are as they were written.

    None if there is none, it is older or damaged, or it was verified only up to a smaller batch size.
    """
    try:
        record = json.loads((version_directory / RECORD_FILE).read_text(encoding="utf-8"))
        built = _built(version_directory, record)
        if any(record[name] != value for name, value in wanted.items()):
            return None
        if built.verification.max_batch_size < max_batch_size or record["sha256"] != _hashes(version_directory):
            return None
    except (OSError, ValueError, KeyError, TypeError):
        # Whatever is unreadable is replaced by a fresh export.
        return None
    return built


def _built(version_directory: Path, record: dict[str, Any]) -> Built:
    found = record["verification"]
    verification = Verification(
        max_batch_size=int(found["max_batch_size"]),
        parity=tuple(Difference(**entry) for entry in found["parity"]),
        invariance=Difference(**found["invariance"]),
        tolerances={name: (atol, rtol) for name, (atol, rtol) in found["tolerances"].items()},
    )
    return Built(
        path=version_directory / MODEL_FILE,
        inputs=_specs(record["inputs"]),
        outputs=_specs(record["outputs"]),
        verification=verification,
        rebuilt=False,
        seconds=0.0,
    )


def _specs(entries: list[dict[str, Any]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(entry["name"], entry["data_type"], tuple(entry["dims"])) for entry in entries)


def _hashes(version_directory: Path) -> dict[str, str]:
    files = (version_directory / MODEL_FILE, *sorted(version_directory.glob(WEIGHTS_PATTERN)))
    return {path.name: sha256(path) for path in files}
