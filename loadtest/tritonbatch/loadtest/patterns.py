"""Patterns of arrivals as text: ``poisson:rate=500,seconds=10``, ``ramp:from=10,to=1000,seconds=30``, a trace.

Rates are requests per second, lengths seconds. All but ``constant`` and ``trace`` are Poisson processes, most with a
rate that changes over the run:

    constant:rate=500,seconds=10                   evenly spaced
    poisson:rate=500,seconds=10                    independent arrivals
    onoff:rate=500,on=1,off=2,seconds=30           bursts; idle=50 is the rate between them, 0 without it
    mmpp:low=100,high=1000,dwell=2,seconds=30      two rates in turn for exponential times of mean dwell
    ramp:from=10,to=1000,seconds=30                a straight line
    step:rates=100/200/400,seconds=30              equal parts of the run
    sine:rate=300,amplitude=200,period=10,seconds=30
    trace:FILE                                     as recorded; speed=2 plays it twice as fast

``requests=N`` may stand for ``seconds`` in the first two: exactly N arrivals, and ``seconds`` is then N / rate.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np

from tritonbatch.loadtest import arrivals
from tritonbatch.loadtest.arrivals import MOST_ARRIVALS, NS_PER_S, Schedule
from tritonbatch.loadtest.mixes import Arrivals
from tritonbatch.loadtest.pattern_text import Fields, fields_of, kind_of
from tritonbatch.loadtest.trace_file import read_trace

MOST_SECONDS = 1e8
"""Three years: nanoseconds are counted in 64 bits."""
MOST_CHANGES = 1_000_000
"""Of the rate during one run."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """When requests arrive: over *seconds*, at *mean_rate_per_s* in expectation; *text* is what it was read from."""

    text: str
    seconds: float
    mean_rate_per_s: float
    draw: Callable[[int], Schedule] = field(repr=False, compare=False)
    trace: Arrivals | None = field(default=None, repr=False, compare=False)

    def schedule(self, seed: int) -> Schedule:
        """Nanoseconds from the start of the run, int64, ascending; the same for the same *seed*.

        Raises:
            InvalidInput: the seed is negative, or this short a pattern has no arrival with it.
        """
        found = self.draw(arrivals.checked_seed(seed))
        if not len(found):
            raise Fields(self.text, "poisson:rate=500,seconds=10", {}).mistake(
                f"has no arrival with the seed {seed}: expected at least one, from a longer run or a higher rate"
            )
        return found

    def arrivals(self, seed: int) -> Arrivals:
        """The schedule with one row of default priority each, or the rows and priorities of the trace."""
        return self.trace or Arrivals.at(self.schedule(seed))


@dataclass(frozen=True, slots=True)
class _Kind:
    """How one kind is written, and what makes the pattern of its fields."""

    example: str
    keys: tuple[str, ...]
    build: Callable[[Fields], Pattern]
    optional: tuple[str, ...] = ()


def pattern(text: str) -> Pattern:
    """Read a pattern; a trace is read from its file here, so that a mistake in it shows before anything runs.

    Raises:
        InvalidInput: an unknown kind or key, a missing one, a value that cannot be, no or more than 5 million arrivals.
    """
    kind, rest = kind_of(text, {**{name: each.example for name, each in _KINDS.items()}, "trace": TRACE_EXAMPLE})
    if kind == "trace":
        return _trace(text, rest)
    known = _KINDS[kind]
    fields = fields_of(rest, Fields(text, known.example, {}), known.keys, known.optional)
    found = known.build(fields)
    expected = found.mean_rate_per_s * found.seconds
    if found.seconds > MOST_SECONDS:
        raise fields.mistake(f"lasts {found.seconds:g} s: expected at most {MOST_SECONDS:g}")
    if not 1 - 1e-9 <= expected <= MOST_ARRIVALS:
        raise fields.mistake(f"makes {expected:g} arrivals: expected 1 to {MOST_ARRIVALS:,}")
    return found


TRACE_EXAMPLE = "trace:arrivals.csv,speed=2"


def _trace(text: str, rest: str) -> Pattern:
    file, comma, speed = rest.rpartition(",speed=")
    fields = Fields(text, TRACE_EXAMPLE, {"speed": speed if comma else "1"})
    factor = fields.positive("speed")
    if not (name := (file if comma else rest).strip()):
        raise fields.mistake("names no file: expected trace:FILE")
    read = read_trace(Path(name))
    played = Arrivals((read.at_ns / factor).astype(np.int64) if factor != 1 else read.at_ns, read.rows, read.priority)
    seconds = float(played.at_ns[-1]) / NS_PER_S or 1.0  # all at one moment still is a run
    return Pattern(text, seconds, len(played) / seconds, partial(_recorded, played), played)


def _recorded(played: Arrivals, seed: int) -> Schedule:  # noqa: ARG001 - a trace is the same for every seed
    return played.at_ns


def _even(fields: Fields, process: str) -> Pattern:
    rate = fields.positive("rate")
    if ("seconds" in fields) == ("requests" in fields):
        raise fields.mistake("has both or neither of seconds and requests: expected one of them")
    if "requests" in fields:
        requests = fields.count("requests")
        return Pattern(fields.text, requests / rate, rate, partial(_counted, process, rate, requests))
    seconds = fields.positive("seconds")
    if process == "constant":
        return Pattern(fields.text, seconds, rate, partial(_counted, process, rate, int(rate * seconds + 1e-6)))
    return Pattern(fields.text, seconds, rate, partial(arrivals.piecewise, np.array([0.0, seconds]), np.array([rate])))


def _counted(process: str, rate: float, requests: int, seed: int) -> Schedule:
    return arrivals.PROCESSES[process](rate, requests, seed)


def _onoff(fields: Fields) -> Pattern:
    on, off, seconds = (fields.positive(key) for key in ("on", "off", "seconds"))
    rates = np.array([fields.positive("rate"), fields.rate("idle")])
    _limit_changes(fields, 2 * seconds / (on + off))
    cycles = int(seconds / (on + off)) + 1
    edges = np.cumsum([0.0, *[on, off] * cycles])
    edges = np.append(edges[edges < seconds], seconds)
    per_edge = rates[np.arange(len(edges) - 1) % 2]
    return _pieces(fields, edges, per_edge)


def _step(fields: Fields) -> Pattern:
    rates = np.array(fields.rates("rates"))
    return _pieces(fields, np.linspace(0.0, fields.positive("seconds"), len(rates) + 1), rates)


def _pieces(fields: Fields, edges: arrivals.Floats, rates: arrivals.Floats) -> Pattern:
    seconds = float(edges[-1])
    mean = float(np.sum(rates * np.diff(edges))) / seconds
    return Pattern(fields.text, seconds, mean, partial(arrivals.piecewise, edges, rates))


def _mmpp(fields: Fields) -> Pattern:
    low, high = fields.rate("low"), fields.positive("high")
    dwell, seconds = fields.positive("dwell"), fields.positive("seconds")
    if low > high:
        raise fields.mistake(f"has low={low:g} above high={high:g}: expected low to be the lower rate")
    _limit_changes(fields, seconds / dwell)
    return Pattern(fields.text, seconds, (low + high) / 2, partial(arrivals.mmpp, (low, high), dwell, seconds))


def _ramp(fields: Fields) -> Pattern:
    first, last, seconds = fields.rate("from"), fields.rate("to"), fields.positive("seconds")
    return Pattern(fields.text, seconds, (first + last) / 2, partial(arrivals.ramp, first, last, seconds))


def _sine(fields: Fields) -> Pattern:
    rate, amplitude = fields.positive("rate"), fields.rate("amplitude")
    period, seconds = fields.positive("period"), fields.positive("seconds")
    if amplitude > rate:
        raise fields.mistake(f"has amplitude={amplitude:g} above rate={rate:g}: expected no negative rate")
    turn = 2 * np.pi / period
    mean = rate + amplitude * float(1 - np.cos(turn * seconds)) / (turn * seconds)
    return Pattern(fields.text, seconds, mean, partial(arrivals.sine, rate, amplitude, period, seconds))


def _limit_changes(fields: Fields, changes: float) -> None:
    if changes > MOST_CHANGES:
        raise fields.mistake(f"changes its rate {changes:g} times: expected at most {MOST_CHANGES:,}")


_KINDS: Mapping[str, _Kind] = {
    "poisson": _Kind(
        "poisson:rate=500,seconds=10", ("rate",), partial(_even, process="poisson"), ("seconds", "requests")
    ),
    "constant": _Kind(
        "constant:rate=500,seconds=10", ("rate",), partial(_even, process="constant"), ("seconds", "requests")
    ),
    "onoff": _Kind("onoff:rate=500,on=1,off=2,seconds=30", ("rate", "on", "off", "seconds"), _onoff, ("idle",)),
    "mmpp": _Kind("mmpp:low=100,high=1000,dwell=2,seconds=30", ("low", "high", "dwell", "seconds"), _mmpp),
    "ramp": _Kind("ramp:from=10,to=1000,seconds=30", ("from", "to", "seconds"), _ramp),
    "step": _Kind("step:rates=100/200/400,seconds=30", ("rates", "seconds"), _step),
    "sine": _Kind(
        "sine:rate=300,amplitude=200,period=10,seconds=30", ("rate", "amplitude", "period", "seconds"), _sine
    ),
}
