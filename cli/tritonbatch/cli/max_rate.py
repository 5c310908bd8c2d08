"""``tritonbatch max-rate``: the highest arrival rate at which a model still meets its objective."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.text import Text

from tritonbatch.cli.options import new_run_folder
from tritonbatch.cli.steps import Steps
from tritonbatch.client import Client, Protocol, Unreachable
from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.calibrate import service_times
from tritonbatch.loadtest.folder import read_json, write_json
from tritonbatch.loadtest.generator import Drive, run_locust
from tritonbatch.loadtest.plan import Load, given_loads
from tritonbatch.loadtest.records import read_records
from tritonbatch.loadtest.samples import sample_batches
from tritonbatch.observe.early_stopping import least_requests
from tritonbatch.observe.judge import Judgement, judge
from tritonbatch.observe.max_rate import MaxRate, Outcome, search
from tritonbatch.observe.slo import Objective
from tritonbatch.observe.slo import slo as read_slo

STYLES = {"met": "bold green", "missed": "bold red", "undecided": "bold yellow"}
START = 0.5
"""Of 1 / t(1): a rate that single executions can carry."""
REQUESTS_OVER_LEAST = 3
"""Times the fewest requests that could decide the strictest objective: some are warm-up, some will be over."""
MOST_STRETCHED = 8
"""Times the seconds asked for, at most, that a measurement lasts for the sake of its requests."""
LATE = 0.1
"""Of a latency limit: a generator that is later than that measures itself."""
FILE = "max_rate.json"

Measure = Callable[[float, int], "Measured"]


@dataclass(frozen=True, slots=True)
class Measured:
    """One measurement: what it showed, and what the generator says about itself."""

    load: Load
    judgement: Judgement
    schedule_lag_p99_ms: float

    @property
    def late(self) -> bool:
        """Whether the generator was late enough to matter against the smallest latency limit."""
        return self.schedule_lag_p99_ms > LATE * min(check.objective.limit_ms for check in self.judgement.checks)


def max_rate(
    url: Annotated[str, typer.Option(help="The Triton at HOST:PORT, as it is configured.")],
    model: Annotated[str, typer.Option(help="The model to load.")],
    slo: Annotated[str, typer.Option(help="What must hold: p99=20ms,p50=5ms,errors=0.1%.")],
    rate_from: Annotated[
        float | None, typer.Option(help="Arrivals per second to start at; half of 1 / t(1) by default.")
    ] = None,
    seconds: Annotated[
        float, typer.Option(help="Length of a measurement; up to 8 times that where its requests could not decide.")
    ] = 8.0,
    seed: Annotated[int, typer.Option(help="Seed of the first arrivals; each measurement takes the next.")] = 1,
    protocol: Annotated[str, typer.Option(help="http or grpc.")] = "http",
    samples: Annotated[Path | None, typer.Option(help="An .npz with rows for every input; random by default.")] = None,
    output: Annotated[Path | None, typer.Option(help="Where to leave the records; runs/… by default.")] = None,
) -> None:
    """Search the highest open-loop arrival rate that meets an objective, in at most 12 measurements.

    Each discards its warm-up, must be steady, and decides at 95 % confidence. A failed request counts as one over every
    limit. The search ends with the highest rate met and the lowest missed.

    Example: [bold]tritonbatch max-rate --url localhost:8000 --model ranking_mlp --slo p99=20ms[/]
    """
    if protocol not in {"http", "grpc"}:
        raise InvalidInput(f"The protocol is {protocol!r}: expected http or grpc.")
    objectives, spoken = read_slo(slo), "grpc" if protocol == "grpc" else "http"
    _check_numbers(rate_from, seconds, seed)
    start = _start(url, "grpc" if protocol == "grpc" else "http", model, samples, rate_from)
    folder, console = output or new_run_folder("max-rate"), Console()
    if (folder / FILE).exists():
        raise InvalidInput(f"{folder} already holds a search: expected a new or empty folder; choose another.")
    drive = Drive(url=url, protocol=spoken, model=model, variant="served", client_batch=1, samples=samples)
    with Steps(console) as steps:
        measure = _measurement(drive, objectives, (seconds, seed), folder, steps)
        found, measured = _searched(start, measure, console)
    sentence = final_sentence(model, slo, found, measured)
    write_json(folder / FILE, as_json(model, slo, found, measured) | {"sentence": sentence})
    console.print(sentence, style="bold", markup=False, highlight=False)
    console.print(f"Records  {folder}", highlight=False, soft_wrap=True)


def final_sentence(model: str, slo: str, found: MaxRate, measured: Sequence[Measured]) -> str:
    """What the search found, in one sentence, with the failed requests and whether the generator was the limit."""
    met, missed = found.met_per_s, found.missed_per_s
    failed = sum(each.judgement.checks[0].failed for each in measured)
    failures = f"{failed:,} of {sum(each.judgement.checks[0].requests for each in measured):,} requests judged failed"
    if any(each.late and each.load.rate_per_s == missed for each in measured):
        failures += "; the generator itself was late at the upper end, so the server may carry more"
    if met is None:
        seen = f"does not meet {slo} even at {missed:,.4g}/s"
    elif missed is None:
        seen = f"meets {slo} at {met:,.4g}/s, and no rate that misses it was reached"
    elif found.tallies[missed].missed:
        seen = f"meets {slo} up to {met:,.4g}/s, and no longer at {missed:,.4g}/s"
    else:
        seen = f"meets {slo} up to {met:,.4g}/s, and was not shown to at {missed:,.4g}/s"
    return f"{model} {seen}: {found.confidence}; {failures}."


def as_json(model: str, slo: str, found: MaxRate, measured: Sequence[Measured]) -> dict[str, Any]:
    """The search as JSON: the interval, and each measurement in order."""
    return {
        "model": model,
        "slo": slo,
        "met_per_s": found.met_per_s,
        "missed_per_s": found.missed_per_s,
        "confirmed": found.confirmed,
        "confidence": found.confidence,
        "measurements": [_plain(dataclasses.asdict(each)) for each in measured],
    }


def _check_numbers(rate_from: float | None, seconds: float, seed: int) -> None:
    if seed < 0:
        raise InvalidInput(f"The seed is {seed}: expected 0 or more.")
    if not 0 < seconds < math.inf:
        raise InvalidInput(f"The duration is {seconds}: expected a number of seconds above 0.")
    if rate_from is not None:
        given_loads([rate_from], seconds=max(seconds, 1 / rate_from if rate_from > 0 else 0), seed=seed)


def _start(url: str, protocol: Protocol, model: str, samples: Path | None, rate_from: float | None) -> float:
    with Client(url, protocol=protocol) as client:
        if not client.ready():
            raise Unreachable(f"No Triton is ready at {url} over {protocol}: check address, port and protocol.")
        batch = sample_batches(client, model, 1, samples)[0]  # also says whether model and samples can be sent
        if rate_from is not None:
            return rate_from
        return float(f"{START * 1000 / service_times(client, model, {1: batch})[1]:.3g}")


def _measurement(
    drive: Drive, objectives: Sequence[Objective], length: tuple[float, int], folder: Path, steps: Steps
) -> Measure:
    seconds, seed = length
    least = REQUESTS_OVER_LEAST * max(least_requests(0, objective.allowed) for objective in objectives)
    undecided: dict[float, int] = {}

    def measure(rate_per_s: float, number: int) -> Measured:
        run = folder / f"{number:02d}"
        run.mkdir(parents=True, exist_ok=True)
        requests = requests_of(rate_per_s * seconds, max(least, undecided.get(rate_per_s, 0)))
        load = Load(name=f"{rate_per_s:.4g}/s", rate_per_s=rate_per_s, requests=requests, seed=seed + number - 1)
        what = f"{number}: {rate_per_s:,.4g}/s for {requests / rate_per_s:,.3g} s"
        run_locust(drive, load, run, lambda live: steps(what, int(live["finished"]), requests))
        lag_ms = read_json(run / "records.json").get("schedule_lag_p99_ms")
        judgement = judge(read_records(run), objectives)
        # The next measurement of a rate that could not be decided has the requests that were missing.
        undecided[rate_per_s] = requests + max(check.needed for check in judgement.checks)
        return Measured(load, judgement, float(lag_ms) if lag_ms is not None else math.nan)

    return measure


def requests_of(wanted: float, needed: int) -> int:
    """How many requests to send: as *wanted* by the duration, or *needed* to decide, within bounds."""
    return math.ceil(max(wanted, min(needed, MOST_STRETCHED * wanted)))


def _searched(start_per_s: float, measure: Measure, console: Console) -> tuple[MaxRate, list[Measured]]:
    steps, measured = search(start_per_s), list[Measured]()
    rate = next(steps)
    while True:
        measured.append(measure(rate, len(measured) + 1))
        console.print(line(measured[-1]), soft_wrap=True)
        try:
            rate = steps.send(_outcome(measured[-1]))
        except StopIteration as end:
            found: MaxRate = end.value
            return found, measured


def _outcome(measured: Measured) -> Outcome:
    return measured.judgement.outcome


def line(measured: Measured) -> Text:
    """What a measurement showed, for the terminal."""
    judgement = measured.judgement
    text = Text.assemble(
        f"{measured.load.rate_per_s:,.4g}/s ", (judgement.outcome, STYLES[judgement.outcome]), f"  {judgement.sentence}"
    )
    if measured.late:
        text.append(f" The generator itself was {measured.schedule_lag_p99_ms:,.3g} ms late (p99).", style="yellow")
    return text


def _plain(value: Any) -> Any:
    """*value* with what is not a finite number as null."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
