"""What a gate remembers of runs: each run's figures with their noise, in one JSON file.

The file holds per run the quantiles of the latency of the requests that succeeded, throughput, and failures, a sketch
of the latency distribution, and the facts that must agree for a comparison to mean anything. Records are not needed
any more once it is written.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.folder import read_json, write_json
from tritonbatch.loadtest.records import OK, Records, read_records
from tritonbatch.observe.confidence import Figure, Z, quantile_interval
from tritonbatch.observe.measurement import throughput_of

FORMAT, VERSION = "tritonbatch baseline", 1
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}
SKETCH = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 1.0)
WINDOWS = 20
MUST_AGREE = ("model", "arrivals", "loop", "client_batch")
SAME_RATE = 0.05
"""A pattern's own arrivals differ in rate from seed to seed by less than this part."""
LEAST_MS = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSummary:
    """One run in figures: natural logarithms of milliseconds and of requests per second, with standard errors.

    ``latency`` is by name of quantile, empty when no request succeeded; ``throughput`` is None then. ``sketch`` maps
    shares to milliseconds. ``facts`` are the model, variant, load and machine.
    """

    name: str
    requests: int
    failed: int
    latency: Mapping[str, Figure]
    throughput: Figure | None
    sketch: Mapping[str, float]
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """A run's records and what its folder says about it."""

    name: str
    records: Records
    facts: Mapping[str, Any]


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in *folders*: each holds records, or folders below it do, each a repeat.

    Raises:
        InvalidInput: there is none in a folder, one cannot be read, or they differ in model, variant or load.
    """
    found = [run for folder in folders for run in _run_folders(folder)]
    if twice := sorted({str(run) for run in found if found.count(run) > 1}):
        raise InvalidInput(f"The run {twice[0]} is named twice: expected different repeats; name each once.")
    runs = [_read_run(run) for run in found]
    check_comparable([run.facts for run in runs], [run.name for run in runs], ("variant", *MUST_AGREE))
    return runs


def check_comparable(
    facts: Sequence[Mapping[str, Any]], names: Sequence[str], agree: Sequence[str] = MUST_AGREE
) -> None:
    """Check that runs are of one model under one load: that they *agree*, and have the same arrival rate.

    Raises:
        InvalidInput: two differ; names both.
    """
    for other, name in zip(facts[1:], names[1:], strict=True):
        if difference := _difference(facts[0], other, agree):
            raise InvalidInput(
                f"{names[0]} and {name} cannot be compared: {difference}; expected repeats of one model under one "
                "load; name the folder of one such run each."
            )


def _difference(one: Mapping[str, Any], other: Mapping[str, Any], agree: Sequence[str]) -> str:
    for fact in agree:
        first, second = one.get(fact), other.get(fact)
        if first is not None and second is not None and first != second:
            return f"{fact} is {first} in one and {second} in the other"
    rate, other_rate = float(one.get("rate_per_s") or 0), float(other.get("rate_per_s") or 0)
    # In a closed loop the rate is a result.
    if rate and other_rate and other.get("loop") != "closed" and abs(rate - other_rate) > SAME_RATE * rate:
        return f"{rate:g}/s arrive in one and {other_rate:g}/s in the other"
    return ""


def summary(run: Run, seed: int = 0) -> RunSummary:
    """The figures of *run*, latency from the intended start."""
    records = run.records
    good = np.argsort(records.intended_ns, kind="stable")
    good = good[records.status[good] == OK]
    latency = np.maximum((records.done_ns[good] - records.intended_ns[good]) / 1e6, LEAST_MS)
    quantiles = {name: _quantile(latency, quantile, seed) for name, quantile in QUANTILES.items()} if len(good) else {}
    return RunSummary(
        name=run.name,
        requests=len(records),
        failed=len(records) - len(good),
        latency=quantiles,
        throughput=_throughput(records) if len(good) else None,
        sketch={f"{share:g}": float(np.quantile(latency, share)) for share in SKETCH} if len(good) else {},
        facts=run.facts,
    )


def write_baseline(path: Path, runs: Sequence[RunSummary]) -> None:
    """Write *runs* as a baseline, whole or not at all.

    Raises:
        InvalidInput: no request of a run succeeded, or there is no run.
    """
    for run in runs:
        if not run.latency:
            raise InvalidInput(f"No request of {run.name} succeeded ({run.failed:,} failed): expected a healthy run.")
    if not runs:
        raise InvalidInput("There is no run to keep as a baseline: expected at least one folder with records.")
    path.parent.mkdir(parents=True, exist_ok=True)
    saved = datetime.now(UTC).isoformat(timespec="seconds")
    write_json(path, {"format": FORMAT, "version": VERSION, "saved": saved, "runs": [asdict(run) for run in runs]})


def read_baseline(path: Path) -> list[RunSummary]:
    """Read what :func:`write_baseline` wrote.

    Raises:
        InvalidInput: it is missing, damaged, or of another version.
    """
    value = read_json(path)
    if value.get("format") != FORMAT or value.get("version") != VERSION:
        raise InvalidInput(
            f"{path} is {value.get('format')!r}, version {value.get('version')!r}: expected {FORMAT!r}, version "
            f"{VERSION}; write it again with `tritonbatch gate RUN… --save-baseline`."
        )
    try:
        runs = [_summary_from(run) for run in value["runs"]]
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged ({error!r}): expected what `--save-baseline` wrote.") from error
    if not runs:
        raise InvalidInput(f"{path} holds no run: expected at least one; write it again with `--save-baseline`.")
    return runs


def _summary_from(value: Mapping[str, Any]) -> RunSummary:
    latency = {
        name: Figure(float(value["latency"][name]["value"]), float(value["latency"][name]["error"]))
        for name in QUANTILES
    }
    throughput = Figure(float(value["throughput"]["value"]), float(value["throughput"]["error"]))
    figures = [throughput, *latency.values()]
    if not all(math.isfinite(figure.value) and figure.error >= 0 for figure in figures):
        raise ValueError("a figure is not a number")
    return RunSummary(
        name=str(value["name"]),
        requests=int(value["requests"]),
        failed=int(value["failed"]),
        latency=latency,
        throughput=throughput,
        sketch=dict(value["sketch"]),
        facts=dict(value["facts"]),
    )


def _quantile(latency: Any, quantile: float, seed: int) -> Figure:
    """The logarithm of the quantile; its error is what makes the 95 % interval as wide as it is."""
    interval = quantile_interval(latency, quantile, seed)
    value, low, high = (math.log(end) for end in (interval.estimate, interval.low, interval.high))
    # Without an upper end, the distance to the lower one is all there is to go by.
    width = high - low if math.isfinite(high) else 2 * (value - low)
    return Figure(value, width / (2 * Z))


def _throughput(records: Records) -> Figure:
    """Throughput with the noise that the answers per window show; windows are long, so nearly independent."""
    per_s, _ = throughput_of(records)
    done = records.done_ns[records.status == OK]
    counts, _ = np.histogram(done, WINDOWS, (float(records.intended_ns.min()), float(done.max())))
    return Figure(math.log(per_s), float(counts.std(ddof=1) / counts.mean()) / math.sqrt(WINDOWS))


def _run_folders(folder: Path) -> list[Path]:
    found = sorted({path.parent.resolve() for path in folder.rglob("records*.parquet")}) if folder.is_dir() else []
    if not found:
        raise InvalidInput(
            f"No records in {folder}: expected a folder with records.parquet, or with such folders; run a load first."
        )
    return found


def _read_run(folder: Path) -> Run:
    records = read_records(folder)
    facts: dict[str, Any] = {"model": records.model, "variant": records.variant}
    if (folder / "records.json").exists():
        generator = read_json(folder / "records.json")
        wanted = (*MUST_AGREE, "rate_per_s", "seed", "requests", "protocol", "complete")
        facts |= {name: generator[name] for name in wanted if name in generator and name != "model"}
    manifests = [parent / "manifest.json" for parent in (folder, *folder.parents[:4])]
    if manifest := next((path for path in manifests if path.exists()), None):
        facts |= {
            name: value for name, value in read_json(manifest).items() if name in {"machine", "versions", "started"}
        }
    return Run(str(folder), records, facts)
