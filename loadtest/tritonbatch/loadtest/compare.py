"""Drive the variants of models under the same seeded arrivals, and keep everything that was seen.

Each variant gets a server of its own (the embedded one, started with ``--model-config-name``), or all of them the
server at an address, as it is configured. What the numbers mean is decided elsewhere, from the folder left here.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tritonbatch.client import Client, Protocol
from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.arrivals import schedule
from tritonbatch.loadtest.calibrate import service_times
from tritonbatch.loadtest.folder import read_json, run_folder, write_json
from tritonbatch.loadtest.generator import Drive
from tritonbatch.loadtest.one_run import one_run, run_manifest
from tritonbatch.loadtest.plan import Load, chosen_loads, given_loads
from tritonbatch.loadtest.samples import load_samples, sample_batches
from tritonbatch.loadtest.serving import Serving
from tritonbatch.repository.variants import caller_batch, is_static

Progress = Callable[[str, int, int], None]
"""``progress(what, done, total)``: what is going on, and how much of it is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """One model to compare, and *samples* of its inputs (made up from its metadata without them)."""

    model: str
    samples: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """How to load: *rates_per_s* as given, or chosen by what the model can carry; *seconds* sets the length.

    *loads* by model are those of a comparison to repeat: they are played as they are, and variants in the given order.
    """

    rates_per_s: Sequence[float] = ()
    seconds: float = 8.0
    seed: int = 1
    protocol: Protocol = "http"
    loads: Mapping[str, Sequence[Load]] = field(default_factory=dict)


def compare(
    folder: Path,
    serving: Serving,
    subjects: Sequence[Subject],
    variants: Sequence[str],
    traffic: Traffic,
    progress: Progress,
) -> None:
    """Run every variant of every subject under every load, and leave the evidence in *folder* (see `folder.py`).

    Static and offline variants are driven by a client that sends full batches, padding the last one.

    Raises:
        InvalidInput: the folder already holds a comparison, or a setting cannot be; nothing was written or started.
        TritonbatchError: a server or a run failed; the runs that finished are kept.
    """
    if (folder / "manifest.json").exists():
        raise InvalidInput(f"{folder} already holds a comparison: expected a new or empty folder; choose another.")
    _check(subjects, traffic)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(f"Cannot write to {folder}: {error.strerror}; expected a folder; choose another.") from error
    manifest = _manifest(subjects, variants, traffic)
    write_json(folder / "manifest.json", manifest)
    loads = {model: list(each) for model, each in traffic.loads.items()}
    for variant in variants if loads else sorted(variants, key=_calibration_order):
        progress(f"{variant}: starting Triton", 0, 1)
        with serving(variant) as endpoint, Client(endpoint.url, protocol=endpoint.protocol) as client:
            manifest["server"] = client.server_metadata()
            for subject in subjects:
                if subject.model not in loads:
                    loads[subject.model] = _loads(client, subject, traffic, progress)
                for load in loads[subject.model]:
                    _run(folder, client, subject, variant, load, progress)
    manifest["loads"] = {model: [dataclasses.asdict(load) for load in each] for model, each in loads.items()}
    manifest["complete"] = True
    write_json(folder / "manifest.json", manifest)


def loads_of(comparison: Path) -> dict[str, list[Load]]:
    """The loads that a finished comparison played, by model, to play them again.

    Raises:
        InvalidInput: the folder holds no finished comparison.
    """
    loads = read_json(comparison / "manifest.json").get("loads")
    if not isinstance(loads, dict):
        raise InvalidInput(f"{comparison} holds no finished comparison: expected its loads in the manifest.")
    return {model: [Load(**load) for load in each] for model, each in loads.items()}


def _check(subjects: Sequence[Subject], traffic: Traffic) -> None:
    rates = traffic.rates_per_s or [10 / traffic.seconds if traffic.seconds > 0 else 1.0]
    for load in given_loads(rates, seconds=traffic.seconds, seed=traffic.seed):
        schedule(load.process, load.rate_per_s, 1, load.seed)
    for subject in subjects:
        if subject.samples is not None:
            load_samples(subject.samples)


def _calibration_order(variant: str) -> int:
    """Static first and serial last: the first server must take single requests and full batches, to choose loads."""
    return 0 if is_static(variant) else 2 if variant == "serial" else 1


def _loads(client: Client, subject: Subject, traffic: Traffic, progress: Progress) -> list[Load]:
    if traffic.rates_per_s:
        return given_loads(traffic.rates_per_s, seconds=traffic.seconds, seed=traffic.seed)
    largest = max(1, client.config(subject.model).max_batch_size)
    progress(f"{subject.model}: measuring t(1) and t({largest}) to choose the rates", 0, 1)
    batches = {size: _inputs(client, subject, size) for size in (1, largest)}
    curve_ms = service_times(client, subject.model, batches)
    return chosen_loads(curve_ms, seconds=traffic.seconds, seed=traffic.seed)


def _run(
    folder: Path,
    client: Client,
    subject: Subject,
    variant: str,
    load: Load,
    progress: Progress,
) -> None:
    model, what = subject.model, f"{variant}: {subject.model} {load.name} at {load.rate_per_s:,.0f}/s"
    config = client.config(model)
    drive = Drive(
        url=client.url,
        protocol=client.protocol,
        model=model,
        variant=variant,
        client_batch=caller_batch(variant, config.max_batch_size),
        samples=subject.samples,
    )
    progress(what, 0, load.requests)
    run = run_folder(folder, model, load.name, variant)
    one_run(run, client, drive, load, lambda live: progress(what, int(live["finished"]), load.requests))


def _inputs(client: Client, subject: Subject, rows: int) -> Mapping[str, Any]:
    return sample_batches(client, subject.model, rows, subject.samples)[0]


def _manifest(subjects: Sequence[Subject], variants: Sequence[str], traffic: Traffic) -> dict[str, Any]:
    return {
        **run_manifest(traffic.seed, traffic.protocol),
        "variants": list(variants),
        "subjects": [dataclasses.asdict(subject) for subject in subjects],
    }
