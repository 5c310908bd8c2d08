"""Read the folder that a comparison left, finished or not, into measurements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.grpc.service_pb2 import ModelStatistics

from tritonbatch.client.counters import executions_between, mean_queue_ms
from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.folder import read_json
from tritonbatch.loadtest.plan import Load
from tritonbatch.loadtest.records import Records, read_records
from tritonbatch.observe.measurement import Measurement, errors_of, latency_of, throughput_of
from tritonbatch.repository.config import config_text, scheduler_of

M = TypeVar("M", bound=Message)
Key = tuple[str, str, str]
"""Model, load name, variant."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a comparison showed: its manifest, a measurement per finished run, and the records behind each."""

    manifest: Mapping[str, Any]
    measurements: tuple[Measurement, ...]
    records: Mapping[Key, Records]


def read_comparison(folder: Path) -> Comparison:
    """Read every finished run in *folder*, in the order that the manifest names models and variants.

    Raises:
        InvalidInput: the folder is not a comparison, holds no finished run, or a file in it is damaged.
    """
    manifest = read_json(folder / "manifest.json")
    runs = [path.parent for path in sorted((folder / "runs").glob("*/*/*/server.json"))]
    if not runs:
        raise InvalidInput(f"{folder} holds no finished run: expected at least one; run `tritonbatch compare` again.")
    read = [_read_run(run) for run in runs]
    models = [str(subject.get("model")) for subject in manifest.get("subjects", [])]
    variants = [str(variant) for variant in manifest.get("variants", [])]
    read.sort(key=lambda item: _order(item[0], models, variants))
    records = {(m.model, m.load.name, m.variant): each for m, each, _ in read}
    served = {f"{m.model} {m.variant}": text for m, _, text in read}
    return Comparison({**manifest, "configuration as served": served}, tuple(m for m, _, _ in read), records)


def _order(measurement: Measurement, models: list[str], variants: list[str]) -> tuple[int, float, int]:
    def place(name: str, names: list[str]) -> int:
        return names.index(name) if name in names else len(names)

    return place(measurement.model, models), measurement.load.rate_per_s, place(measurement.variant, variants)


def statistics_of(run: Path) -> tuple[ModelStatistics, ModelStatistics]:
    """The model's statistics before and after the run in this folder.

    Raises:
        InvalidInput: they are missing or damaged.
    """
    return _stored(run, "before", ModelStatistics()), _stored(run, "after", ModelStatistics())


def configuration_of(run: Path) -> ModelConfig:
    """The configuration as it was served during the run in this folder.

    Raises:
        InvalidInput: it is missing or damaged.
    """
    return _stored(run, "config", ModelConfig())


def _stored(run: Path, name: str, into: M) -> M:
    server = read_json(run / "server.json")
    try:
        return json_format.ParseDict(server[name], into, ignore_unknown_fields=True)
    except (KeyError, TypeError, json_format.ParseError) as error:
        raise _damaged(run, error) from error


def _damaged(run: Path, error: Exception) -> InvalidInput:
    return InvalidInput(f"{run} is damaged ({error}): expected what `tritonbatch compare` wrote.")


def _read_run(run: Path) -> tuple[Measurement, Records, str]:
    records, config = read_records(run), configuration_of(run)
    generator = read_json(run / "records.json")
    before, after = statistics_of(run)
    try:
        measurement = _measure(records, generator, before, after, config)
    except (KeyError, TypeError) as error:
        raise _damaged(run, error) from error
    return measurement, records, config_text(config)


def _measure(
    records: Records, generator: Mapping[str, Any], before: ModelStatistics, after: ModelStatistics, config: ModelConfig
) -> Measurement:
    throughput, duration_s = throughput_of(records)
    return Measurement(
        model=records.model,
        variant=records.variant,
        load=Load(
            name=generator["load"],
            rate_per_s=generator["rate_per_s"],
            requests=generator["requests"],
            seed=generator["seed"],
            process=generator["arrivals"],
            loop=generator["loop"],
        ),
        requests=len(records),
        errors=errors_of(records),
        duration_s=duration_s,
        throughput_per_s=throughput,
        latency=latency_of(records, records.intended_ns),
        raw_latency=latency_of(records, records.sent_ns),
        schedule_lag_p99_ms=generator["schedule_lag_p99_ms"],
        queue_ms=mean_queue_ms(before, after),
        executions=executions_between(before, after),
        max_batch_size=config.max_batch_size,
        scheduler=scheduler_of(config),
    )
