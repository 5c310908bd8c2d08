"""How numbers are written in sentences, tables and the page: a dash where nothing was measured, never "nan"."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from tritonbatch.loadtest.plan import Load
from tritonbatch.observe.measurement import Measurement

MISSING = "\N{EN DASH}"
TIMES = "\N{MULTIPLICATION SIGN}"


def significant(value: float, digits: int = 3) -> str:
    """*value* to *digits* significant digits with thousands separators: 1234.5 is ``1,230``, 6.0 is ``6.00``."""
    if not math.isfinite(value):
        return MISSING
    exponent = int(f"{value:.{digits - 1}e}".split("e")[1])
    decimals = digits - 1 - exponent if value else 0
    return f"{round(value, decimals):,.{max(decimals, 0)}f}"


def trimmed(value: float) -> str:
    """*value* to three digits, 54.0 being written 54."""
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text


def per_second(value: float) -> str:
    """A rate for a table: whole from 100/s on, three digits below."""
    return f"{value:,.0f}" if value >= 99.95 else significant(value)


def rate(value: float) -> str:
    """A rate for a sentence, with its unit."""
    return f"{trimmed(value)}/s"


def milliseconds(value: float) -> str:
    """A duration for a sentence, with its unit."""
    return f"{significant(value, 2 if value < 100 else 3)} ms"


def times(value: float) -> str:
    """A factor to one decimal, which is as much as one run can tell."""
    return f"{value:,.1f}" if math.isfinite(value) else MISSING


def percent(share: float) -> str:
    """A share of one as a percentage; a small one keeps a digit, so that a rare failure never reads 0%."""
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if share < 0.1 else f"{share:.0%}"


def load_text(load: Load) -> str:
    """The arrivals of *load* in words, which every table must show."""
    arrivals = rate(load.rate_per_s) if math.isfinite(load.rate_per_s) else f"{load.requests:,} requests"
    return f"{arrivals}, {load.loop} loop"


def errors_text(measurement: Measurement, *, kinds: bool = True) -> str:
    """Failed requests with their share and, if asked for, their kinds; or ``0``."""
    if not measurement.failed:
        return "0"
    share = percent(measurement.failed / measurement.requests)
    return f"{measurement.failed:,} ({share}{f': {kinds_text(measurement.errors)}' if kinds else ''})"


def kinds_text(errors: Mapping[str, int]) -> str:
    """The kinds of failure, most frequent first."""
    return ", ".join(
        f"{count:,} {kind}" for kind, count in sorted(errors.items(), key=lambda e: (-e[1], e[0])) if count
    )


def executions_text(measurement: Measurement, most: int = 5) -> str:
    """Executions by batch size as ``1x12 8x40``; of more than *most* sizes only the most frequent, and how many not."""
    executions = [e for e in measurement.executions if e.count]
    if not executions:
        return MISSING
    shown = sorted(executions, key=lambda e: e.count, reverse=True)[:most]
    parts = [f"{e.batch_size}{TIMES}{e.count:,}" for e in sorted(shown, key=lambda e: e.batch_size)]
    hidden = len(executions) - len(shown)
    return " ".join([*parts, f"+{hidden} sizes"] if hidden else parts)


def listing(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def by_model(measurements: Iterable[Measurement]) -> dict[str, list[Measurement]]:
    """*measurements* grouped by model, models in order of appearance, loads from light to heavy within each."""
    groups: dict[str, list[Measurement]] = {}
    for measurement in measurements:
        groups.setdefault(measurement.model, []).append(measurement)
    return {model: in_load_order(group) for model, group in groups.items()}


def by_load(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """*measurements* grouped by load, from the lightest to the heaviest."""
    return [list(group) for _, group in groupby(in_load_order(measurements), key=lambda m: m.load.name)]


def in_load_order(measurements: Iterable[Measurement]) -> list[Measurement]:
    """*measurements* from the lightest load to the heaviest; the order of variants is kept."""
    order: dict[str, float] = {}
    measurements = list(measurements)
    for m in measurements:
        order.setdefault(m.load.name, demand(m.load))
    names = sorted(order, key=lambda name: order[name])
    return sorted(measurements, key=lambda m: names.index(m.load.name))


def demand(load: Load) -> float:
    """How much *load* asks for; a closed loop has no rate of its own and always asks for more."""
    return load.rate_per_s if math.isfinite(load.rate_per_s) and load.loop == "open" else math.inf
