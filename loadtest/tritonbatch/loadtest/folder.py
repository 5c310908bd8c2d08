"""The folder that a comparison leaves: what was asked, and for every run its records and the server's statistics.

    <comparison>/manifest.json                        machine, versions, seed, loads; ``complete`` turns true at the end
    <comparison>/runs/<model>/<load>/<variant>/
        records.parquet   one record per request
        records.json      how faithfully the generator played the schedule
        server.json       the model's statistics before and after, and the configuration as served

Everything in it is written whole or not at all, so that each later stage can be run alone, and an interrupted
comparison can still be read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

from google.protobuf import json_format
from google.protobuf.message import Message

from tritonbatch.errors import InvalidInput
from tritonbatch.whole_file import whole_file


def run_folder(comparison: Path, model: str, load: str, variant: str) -> Path:
    """Where the run of *variant* of *model* under *load* lies; names are escaped, as a model may be called anything."""
    return comparison / "runs" / quote(model, safe=" ") / quote(load, safe=" ") / quote(variant, safe=" ")


def write_json(path: Path, value: Any) -> None:
    """Write *value* as JSON by rename; protobufs inside become their JSON form."""
    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, default=_plain) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        InvalidInput: the file is missing, or is not a JSON object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"Cannot read {path}: {error}; expected a file that `tritonbatch compare` wrote.") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path} holds a {type(value).__name__}: expected a JSON object that `compare` wrote.")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, Message):
        return json_format.MessageToDict(value, preserving_proto_field_name=True)
    return str(value)
