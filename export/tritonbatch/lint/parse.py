"""From the text of a config.pbtxt to its protobuf, or to the finding that says where and how to correct it."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path

from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.errors import InvalidInput
from tritonbatch.lint.finding import Finding

ABOUT = {
    "not-text": "The file is not UTF-8 text, or starts with a byte order mark.",
    "unknown-field": "A field does not exist in Triton's ModelConfig, or not in this place.",
    "unknown-value": "An enumeration has no such value, such as TYPE_FLOAT32 for TYPE_FP32.",
    "two-schedulers": "Two schedulers are set (dynamic, sequence, ensemble), or two of another choice.",
    "field-twice": "A field that holds one value is written twice.",
    "syntax": "The text is not a text protobuf: a bracket, colon or quote is missing, or a value has the wrong type.",
}
"""The rules about the text itself, all errors: Triton fails to read the file, and says no more than that."""

# What people write for what Triton calls by another name.
SYNONYMS = {
    "TYPE_FLOAT16": "TYPE_FP16",
    "TYPE_HALF": "TYPE_FP16",
    "TYPE_FLOAT32": "TYPE_FP32",
    "TYPE_FLOAT": "TYPE_FP32",
    "TYPE_FLOAT64": "TYPE_FP64",
    "TYPE_DOUBLE": "TYPE_FP64",
    "TYPE_BFLOAT16": "TYPE_BF16",
    "TYPE_BYTES": "TYPE_STRING",
    "TYPE_LONG": "TYPE_INT64",
    "TYPE_INT": "TYPE_INT32",
    "preferred_batch_sizes": "preferred_batch_size",
    "shape": "dims",
    "inputs": "input",
    "outputs": "output",
    "max_queue_delay": "max_queue_delay_microseconds",
    "instance_groups": "instance_group",
    "max_batch": "max_batch_size",
    "filename": "default_model_filename",
}
_NO_FIELD = re.compile(r'Message type "(?P<message>[^"]+)" has no field named "(?P<name>[^"]+)"')
_NO_VALUE = re.compile(r'Enum type "(?P<message>[^"]+)" has no value (?:named|with number) (?P<name>[^\s.]+)')
_TWICE = re.compile(r'should not have multiple "(?P<name>[^"]+)" fields')
_BOTH = re.compile(r'Field "(?P<name>[^"]+)" is specified along with field "(?P<other>[^"]+)"')
_ENDS_WITH_STATEMENT = re.compile(r"^'.*': (?=[A-Z])", re.DOTALL)


def parse(file: Path) -> ModelConfig | Finding:
    """The configuration in *file*, or what is wrong with its text.

    Raises:
        InvalidInput: it cannot be read at all.
    """
    try:
        return text_format.Parse(file.read_text(encoding="utf-8"), ModelConfig())
    except OSError as error:
        raise InvalidInput(f"Cannot read {file}: {error.strerror}; expected a config.pbtxt.") from error
    except UnicodeDecodeError as error:
        message = f"byte {error.start} is no UTF-8, expected text"
        return _finding(file, "not-text", "", message, "save the file as UTF-8 without a byte order mark")
    except text_format.ParseError as error:
        return _explained(file, error)


def _explained(file: Path, error: text_format.ParseError) -> Finding:
    text = str(error).split(" : ", 1)[-1].strip()
    where = f"{file.name}:{error.GetLine()}:{error.GetColumn()}: "
    if "\ufeff" in text:
        return _finding(
            file, "not-text", "", f"{where}the file starts with a byte order mark", "save it as plain UTF-8"
        )
    if found := _NO_FIELD.search(text):
        return _unknown(file, "unknown-field", where, found["message"], found["name"])
    if found := _NO_VALUE.search(text):
        return _unknown(file, "unknown-value", where, found["message"], found["name"])
    if found := _TWICE.search(text):
        fix = f"keep one {found['name']}"
        return _finding(file, "field-twice", found["name"], f"{where}{found['name']} is set twice, expected once", fix)
    if found := _BOTH.search(text):
        message = f"{where}{found['name']} and {found['other']} are both set, expected one of them"
        fix = f"remove {found['name']} or {found['other']}"
        return _finding(file, "two-schedulers", found["name"], message, fix)
    reason = _ENDS_WITH_STATEMENT.sub("", text).rstrip(".")
    return _finding(file, "syntax", "", f"{where}{reason}; expected a text protobuf", _advice(reason))


def _advice(reason: str) -> str:
    if '":"' in reason:
        return "write `field: value`, with a colon"
    if "integer" in reason:
        return "write a whole number without quotes"
    if "string" in reason.lower():
        return 'put the text between double quotes, as in name: "x"'
    if '"{"' in reason:
        return "write a block in braces, as in `dynamic_batching { }`, and no comma after a list's last element"
    if '"}"' in reason or '"]"' in reason:
        return "close every bracket that was opened before"
    return "write `field: value` or `field { … }`; a comment starts with #"


def _unknown(file: Path, rule: str, where: str, message_type: str, name: str) -> Finding:
    allowed = sorted(_names(ModelConfig.DESCRIPTOR, message_type))
    close = _closest(name, allowed)
    owner = message_type.rpartition(".")[2]
    kind = "a field" if rule == "unknown-field" else "a value"
    fix = f"write {close}" if close else f"use one of {', '.join(allowed)}"
    message = f"{where}{name} is not {kind} of {owner}, expected {close or 'one that exists'}"
    return _finding(file, rule, name, message, fix)


def _closest(name: str, allowed: list[str]) -> str:
    if (synonym := SYNONYMS.get(name, "")) in allowed:
        return synonym
    upper = {each.upper(): each for each in allowed}
    prefixed = next((upper[key] for key in upper if key.endswith(f"_{name.upper()}")), "")
    close = difflib.get_close_matches(name.upper(), upper, n=1, cutoff=0.6)
    return prefixed or (upper[close[0]] if close else "")


def _names(message: Descriptor, full_name: str) -> Iterable[str]:
    found = _find(message, full_name, set())
    if found is None:
        return ()
    if isinstance(found, EnumDescriptor):
        return (value.name for value in found.values if value.name != "TYPE_INVALID")
    return (each.name for each in found.fields)


def _find(message: Descriptor, full_name: str, seen: set[str]) -> Descriptor | EnumDescriptor | None:
    """The message or enumeration called *full_name*, at or below *message*."""
    if message.full_name == full_name:
        return message
    seen.add(message.full_name)
    for each in message.fields:
        if each.enum_type is not None and each.enum_type.full_name == full_name:
            return each.enum_type
        below = each.message_type
        if below is not None and below.full_name not in seen and (found := _find(below, full_name, seen)) is not None:
            return found
    return None


def _finding(file: Path, rule: str, name: str, message: str, fix: str) -> Finding:
    return Finding(file=file, field=name, level="error", rule=rule, message=message, fix=fix)
