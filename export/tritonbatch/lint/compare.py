"""What two configurations differ in, after both say plainly what Triton would decide by itself."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelInstanceGroup

from tritonbatch.lint.subject import PLATFORMS, Subject

UNSET = "(not set)"
# Lists whose order means nothing: what tells their entries apart.
KEYS = {"input": "name", "output": "name", "model_warmup": "name", "control_input": "name"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One field with its value on either side."""

    field: str
    left: str
    right: str


def normalised(subject: Subject) -> ModelConfig:
    """The configuration of *subject* with every default written out and every set in order."""
    config = ModelConfig()
    config.CopyFrom(subject.config)
    config.name = ""  # it is the directory's, which differs between copies of one model
    config.backend = subject.backend
    if PLATFORMS.get(config.platform) == config.backend:
        config.platform = ""
    if config.default_model_filename in ("", subject.model_file):
        config.default_model_filename = ""
    if not config.HasField("version_policy"):
        config.version_policy.latest.num_versions = 1
    _normalise_batching(config)
    _normalise_instances(config, subject)
    return config


def _normalise_batching(config: ModelConfig) -> None:
    if config.HasField("dynamic_batching"):
        sizes = config.dynamic_batching.preferred_batch_size
        sizes[:] = sorted(set(sizes)) or ([config.max_batch_size] if config.max_batch_size > 0 else [])
    if config.sequence_batching.HasField("oldest"):
        sizes = config.sequence_batching.oldest.preferred_batch_size
        sizes[:] = sorted(set(sizes)) or ([config.max_batch_size] if config.max_batch_size > 0 else [])


def _normalise_instances(config: ModelConfig, subject: Subject) -> None:
    if subject.is_ensemble:
        return
    if not config.instance_group:
        config.instance_group.add()
    for group in config.instance_group:
        on_cpu = group.kind in (ModelInstanceGroup.KIND_AUTO, ModelInstanceGroup.KIND_CPU)
        group.count = group.count if group.count > 0 else 2 if on_cpu and subject.backend == "onnxruntime" else 1
        group.gpus[:] = sorted(set(group.gpus))
    for switch in ("input_pinned_memory", "output_pinned_memory"):
        if not config.optimization.HasField(switch):
            getattr(config.optimization, switch).enable = True


def differences(left: ModelConfig, right: ModelConfig) -> list[Difference]:
    """The fields that differ, by their path."""
    one, other = dict(_leaves(left, "")), dict(_leaves(right, ""))
    return [
        Difference(field, one.get(field, UNSET), other.get(field, UNSET))
        for field in sorted(one.keys() | other.keys())
        if one.get(field) != other.get(field)
    ]


def _leaves(message: Message, path: str) -> Iterator[tuple[str, str]]:
    """Every value that is set, with its path; a block that is there but empty counts as a value."""
    for descriptor, value in message.ListFields():
        yield from _field(descriptor, value, f"{path}.{descriptor.name}" if path else descriptor.name)


def _field(descriptor: FieldDescriptor, value: Any, path: str) -> Iterator[tuple[str, str]]:
    entry_type = descriptor.message_type
    if entry_type is not None and entry_type.GetOptions().map_entry:
        for key in sorted(value):
            yield from _value(entry_type.fields_by_name["value"], value[key], f'{path}["{key}"]')
    elif not descriptor.is_repeated:
        yield from _value(descriptor, value, path)
    elif descriptor.message_type is None:
        yield path, f"[{', '.join(_text(descriptor, each) for each in value)}]"
    else:
        for name, entry in zip(_names(descriptor.name, value), value, strict=True):
            yield from _value(descriptor, entry, f"{path}[{name}]")


def _value(descriptor: FieldDescriptor, value: Any, path: str) -> Iterator[tuple[str, str]]:
    if descriptor.message_type is None:
        yield path, _text(descriptor, value)
    elif value.ListFields():
        yield from _leaves(value, path)
    else:
        yield path, "{ }"


def _names(field: str, entries: Sequence[Any]) -> list[str]:
    """What stands in the brackets: the entry's name where order means nothing, else its place."""
    names = [str(getattr(entry, KEYS[field])) for entry in entries] if field in KEYS else []
    distinct = bool(names) and len(set(names)) == len(names)
    return [f'"{name}"' for name in names] if distinct else [str(index) for index in range(len(entries))]


def _text(descriptor: FieldDescriptor, value: Any) -> str:
    if descriptor.enum_type is not None:
        known = descriptor.enum_type.values_by_number.get(value)
        return known.name if known else str(value)
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)
