"""Rules about sequence batching, the response cache, and fields that older servers do not know."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig, ModelSequenceBatching

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject

SEQUENCES = "sequence_batching"
Control = ModelSequenceBatching.Control
CORRELATION = Control.CONTROL_SEQUENCE_CORRID
CORRELATION_TYPES = (
    DataType.TYPE_UINT64,
    DataType.TYPE_INT64,
    DataType.TYPE_UINT32,
    DataType.TYPE_INT32,
    DataType.TYPE_STRING,
)
PAIRS = ("int32_false_true", "fp32_false_true", "bool_false_true")


def _controls(subject: Subject) -> Iterator[tuple[str, Any]]:
    for index, tensor in enumerate(subject.config.sequence_batching.control_input):
        for place, control in enumerate(tensor.control):
            yield f"{SEQUENCES}.control_input[{index}].control[{place}]", control


def _preferred(subject: Subject) -> Iterator[Problem]:
    largest = subject.config.max_batch_size
    for index, size in enumerate(subject.config.sequence_batching.oldest.preferred_batch_size):
        if not 0 < size <= largest:
            message = f"preferred batch size {size} of sequences, expected 1 to max_batch_size {largest}"
            yield Problem(f"{SEQUENCES}.oldest.preferred_batch_size[{index}]", message, f"remove {size}")


def _keep_valid_sizes(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001 - the signature of a repair
    sizes = config.sequence_batching.oldest.preferred_batch_size
    sizes[:] = [size for size in sizes if 0 < size <= config.max_batch_size]


def _utilization(subject: Subject) -> Iterator[Problem]:
    share = subject.config.sequence_batching.direct.minimum_slot_utilization
    if not 0 <= share <= 1:
        message = f"minimum_slot_utilization is {share:g}, expected 0 to 1"
        yield Problem(f"{SEQUENCES}.direct.minimum_slot_utilization", message, "minimum_slot_utilization: 0.5")


def _control_name(subject: Subject) -> Iterator[Problem]:
    names = [tensor.name for tensor in subject.config.sequence_batching.control_input]
    for index, name in enumerate(names):
        if not name or name in names[:index]:
            what = f'"{name}" is listed twice' if name else "it has no name"
            message = f"{what}, expected a name of its own for each control tensor"
            yield Problem(f"{SEQUENCES}.control_input[{index}].name", message, "name the model's control input")


def _control_twice(subject: Subject) -> Iterator[Problem]:
    seen: set[int] = set()
    for path, control in _controls(subject):
        if control.kind in seen:
            message = f"{Control.Kind.Name(control.kind)} is given twice, expected at most once"
            yield Problem(f"{path}.kind", message, "remove one")
        seen.add(control.kind)


def _control_values(subject: Subject) -> Iterator[Problem]:
    for path, control in _controls(subject):
        sizes = {name: len(getattr(control, name)) for name in PAIRS}
        given = {name: size for name, size in sizes.items() if size}
        if control.kind == CORRELATION and given:
            message = f"CONTROL_SEQUENCE_CORRID has {', '.join(given)}, expected only data_type"
            yield Problem(f"{path}.{next(iter(given))}", message, "data_type: TYPE_UINT64 alone")
        elif control.kind != CORRELATION and list(given.values()) != [2]:
            got = ", ".join(f"{name} with {size}" for name, size in given.items()) or "none"
            message = f"the values for false and true are {got}, expected one of {', '.join(PAIRS)} with 2 values"
            yield Problem(path, message, "int32_false_true: [0, 1]")


def _correlation_type(subject: Subject) -> Iterator[Problem]:
    for path, control in _controls(subject):
        if control.kind == CORRELATION and control.data_type not in CORRELATION_TYPES:
            name = DataType.Name(control.data_type)
            message = f"CONTROL_SEQUENCE_CORRID has {name}, expected a 32 or 64 bit integer or TYPE_STRING"
            yield Problem(f"{path}.data_type", message, "data_type: TYPE_UINT64")


def _cache_with_sequences(subject: Subject) -> Iterator[Problem]:
    if subject.config.response_cache.enable and subject.config.HasField("sequence_batching"):
        message = "the response cache is on with sequence_batching, expected it off"
        yield Problem("response_cache.enable", message, "remove response_cache")


def _cache_with_decoupled(subject: Subject) -> Iterator[Problem]:
    if subject.config.response_cache.enable and subject.config.model_transaction_policy.decoupled:
        message = "the response cache is on with a decoupled model, expected it off"
        yield Problem("response_cache.enable", message, "remove response_cache")


def _drop_cache(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    config.ClearField("response_cache")


def _cache_needs_server(subject: Subject) -> Iterator[Problem]:
    if subject.config.response_cache.enable:
        message = "the response cache works only when the server has one, expected --cache-config on its command line"
        yield Problem("response_cache.enable", message, "start tritonserver with --cache-config=local,size=1048576")


def _metric_control(subject: Subject) -> Iterator[Problem]:
    for index, control in enumerate(subject.config.model_metrics.metric_control):
        path = f"model_metrics.metric_control[{index}]"
        if not control.metric_identifier.family:
            fix = 'metric_identifier { family: "nv_inference_first_response_histogram_ms" }'
            yield Problem(f"{path}.metric_identifier.family", "no metric family is named, expected one", fix)
        if not control.histogram_options.buckets:
            message = "histogram_options has no buckets, expected at least one"
            yield Problem(f"{path}.histogram_options.buckets", message, "histogram_options { buckets: [10, 100] }")


def _newer_field(subject: Subject) -> Iterator[Problem]:
    config = subject.config
    newer = {
        "model_metrics": config.HasField("model_metrics"),
        "ensemble_scheduling.max_inflight_requests": bool(config.ensemble_scheduling.max_inflight_requests),
    }
    for path, present in newer.items():
        if present:
            message = f"Triton 2.51 does not know {path} and refuses the file, expected a newer server"
            yield Problem(path, message, f"serve it from a newer image, or remove {path}")


RULES = (
    error(
        "sequence-preferred",
        "A preferred batch size of sequences is outside 1 to max_batch_size.",
        _preferred,
        _keep_valid_sizes,
    ),
    error("sequence-utilization", "minimum_slot_utilization is not within 0 to 1.", _utilization),
    error("sequence-control-name", "A control tensor has no name, or another's.", _control_name),
    error("sequence-control-twice", "A kind of control is given twice.", _control_twice),
    error(
        "sequence-control-values", "A control has not exactly one pair of values for false and true.", _control_values
    ),
    error("sequence-correlation-type", "The correlation ID is neither an integer nor text.", _correlation_type),
    error(
        "cache-with-sequences", "Response cache together with sequence batching.", _cache_with_sequences, _drop_cache
    ),
    error(
        "cache-with-decoupled", "Response cache together with a decoupled model.", _cache_with_decoupled, _drop_cache
    ),
    error("metric-control", "A metric control lacks its family or its buckets.", _metric_control),
    warning(
        "cache-needs-server", "The response cache is off unless the server was started with one.", _cache_needs_server
    ),
    warning("field-newer-than-server", "A field that Triton 2.51, the embedded server, does not know.", _newer_field),
)
