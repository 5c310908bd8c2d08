"""The sentence of a verdict: clauses chosen by the evidence, joined by semicolons. Every number in it was measured."""

from __future__ import annotations

import math

from tritonbatch.observe.measurement import Measurement
from tritonbatch.report.evidence import OFFLINE_WORTHWHILE, WORTHWHILE, Evidence, gain, typical_batch, worse
from tritonbatch.report.explanation import kept_up
from tritonbatch.report.wording import kinds_text, listing, milliseconds, rate, times


def advise(evidence: Evidence) -> str:
    """One sentence: which variant for which traffic, and why."""
    if not evidence.heavy:
        clauses = [f"No variant of {evidence.model} can be recommended from this run"]
    elif len(evidence.heavy) == 1:
        clauses = [_alone(evidence, *evidence.heavy.values())]
    elif all(kept_up(m) for m in evidence.heavy.values()):
        clauses = [_unsaturated(evidence)]
    else:
        clauses = [_online(evidence), *_offline(evidence)]
    return "; ".join([*clauses, *_failures(evidence)]) + "."


def _alone(evidence: Evidence, only: Measurement) -> str:
    light = evidence.light.get(only.variant)
    beside = f", and at {rate(light.load.rate_per_s)} {milliseconds(light.latency.p99_ms)}" if light else ""
    p99 = f"a p99 of {milliseconds(only.latency.p99_ms)}{beside}"
    return (
        f"{only.variant} {_carried(only)} of {evidence.model} with {p99}, "
        "but there is no other variant to compare it with, so this run cannot tell whether batching helps"
    )


def _unsaturated(evidence: Evidence) -> str:
    """Every variant kept up, so only latency can decide."""
    ranked = sorted(evidence.heavy.values(), key=lambda m: (math.isnan(m.latency.p99_ms), m.latency.p99_ms))
    first, others = ranked[0], [f"{m.variant} {milliseconds(m.latency.p99_ms)}" for m in ranked[1:]]
    return (
        f"Serve {evidence.model} with {first.variant} at this traffic, because at {rate(first.load.rate_per_s)} every "
        f"variant kept up and its p99 was the lowest ({milliseconds(first.latency.p99_ms)}; {listing(others)}), but "
        "none reached its capacity, so whether batching raises that takes a higher rate"
    )


def _online(evidence: Evidence) -> str:
    serial, batched = evidence.serial, evidence.batched
    if batched is None:
        return _nothing_batched(evidence, serial)
    if serial is None:
        return (
            f"Serve {evidence.model} with {batched.variant} for online traffic: it {_carried(batched)}"
            f"{_because(evidence, batched)}, but nothing ran one at a time, so the gain of batching is not known"
        )
    if gain(batched, serial) < WORTHWHILE:
        return _not_worthwhile(evidence, serial, batched)
    return _worthwhile(evidence, serial, batched)


def _nothing_batched(evidence: Evidence, serial: Measurement | None) -> str:
    if serial is None:
        carried = listing([f"{m.variant} {_carried(m)}" for m in evidence.heavy.values()])
        return f"The variants of {evidence.model} here only suit jobs that can wait: {carried}"
    chosen = f"Serve {evidence.model} with {serial.variant} for online traffic"
    return f"{chosen}: it {_carried(serial)}, and no other online variant gave usable numbers"


def _worthwhile(evidence: Evidence, serial: Measurement, batched: Measurement) -> str:
    where = f"under {batched.load.name}" if kept_up(batched) else "at saturation"
    carried = f"{where} it {_carried(batched)}, {_times_serial(serial, batched)}{_because(evidence, batched)}"
    light, light_serial = evidence.light.get(batched.variant), evidence.light.get(serial.variant)
    online = f"Serve {evidence.model} with {batched.variant} for online traffic: {carried}"
    if light is None or light_serial is None:
        return online
    at, p99, p99_serial = rate(light.load.rate_per_s), *(milliseconds(m.latency.p99_ms) for m in (light, light_serial))
    if worse(light, light_serial):
        return (
            f"Serve {evidence.model} with {serial.variant} while traffic is low, because at {at} its p99 is "
            f"{p99_serial} against {p99} for {batched.variant}, and with {batched.variant} as traffic nears the "
            f"{rate(serial.throughput_per_s)} that {serial.variant} carries: {carried}"
        )
    how = "better than" if worse(light_serial, light) else "no worse than"
    return f"{online}, and at {at} its p99 ({p99}) is {how} {serial.variant}'s ({p99_serial})"


def _not_worthwhile(evidence: Evidence, serial: Measurement, batched: Measurement) -> str:
    why = _why_not(evidence, batched)
    against = f"{rate(batched.throughput_per_s)} against {rate(serial.throughput_per_s)}"
    effect = f"{why}{batched.variant} carried only {_times_serial(serial, batched)} ({against})"
    choice = f"{serial.variant} or {batched.variant} without a queue delay"
    light, light_serial = evidence.light.get(batched.variant), evidence.light.get(serial.variant)
    if light and light_serial and worse(light, light_serial):
        p99, p99_serial = milliseconds(light.latency.p99_ms), milliseconds(light_serial.latency.p99_ms)
        choice = f"{serial.variant}, whose p99 at {rate(light.load.rate_per_s)} is {p99_serial} against {p99}"
    static = evidence.static
    what = "Batching online traffic" if static and gain(static, serial) >= WORTHWHILE else "Batching"
    return f"{what} hardly helps {evidence.model} here: {effect}; keep batches small ({choice})"


def _why_not(evidence: Evidence, batched: Measurement) -> str:
    """The part that t(B) plays, if it plays one; a curve that promises more than was seen is no reason."""
    size, one_ms = typical_batch(batched), evidence.curve.get(1)
    if not size or size == 1 or not one_ms:
        return ""
    ratio = evidence.curve[size] / one_ms
    if size / ratio >= WORTHWHILE**2:
        return f"although an execution of {size} takes only {times(ratio)} times one of 1, "
    return f"an execution of {size} takes {times(ratio)} times one of 1, so "


def _because(evidence: Evidence, batched: Measurement) -> str:
    size, one_ms = typical_batch(batched), evidence.curve.get(1)
    if not size or size == 1:
        return ""
    took = f", because an execution of {size} takes {milliseconds(evidence.curve[size])}"
    return f"{took}, only {times(evidence.curve[size] / one_ms)} times one of 1" if one_ms else took


def _offline(evidence: Evidence) -> list[str]:
    """Whether static pays for the wait that it imposes."""
    static, online = evidence.static, evidence.batched or evidence.serial
    if static is None or online is None:
        return []
    wait = _static_wait(evidence, static, online)
    if gain(static, online) >= OFFLINE_WORTHWHILE:
        more = f"{times(gain(static, online))} times {online.variant}"
        taken = f"take {static.variant} for offline jobs that can wait: it {_carried(static)}, {more}"
        return [f"{taken}, but {wait}" if wait else taken]
    none = f"offline jobs gain nothing from {static.variant}, which {_carried(static)}, no more than {online.variant}"
    return [f"{none}, and {wait}" if wait else none]


def _static_wait(evidence: Evidence, static: Measurement, online: Measurement) -> str:
    light, other = evidence.light.get(static.variant), evidence.light.get(online.variant)
    if light is None or other is None or not worse(light, other):
        return ""
    p99 = f"its p99 at {rate(light.load.rate_per_s)} is {milliseconds(light.latency.p99_ms)}"
    return f"{p99}, because requests wait until a batch is full"


def _failures(evidence: Evidence) -> list[str]:
    return [
        f"{m.variant} is not recommended, because {m.failed:,} of {m.requests:,} requests failed under {m.load.name} "
        f"({kinds_text(m.errors)})"
        for m in evidence.failing
    ]


def _carried(measurement: Measurement) -> str:
    if kept_up(measurement):
        return f"kept up with the {rate(measurement.load.rate_per_s)} that arrived"
    return f"carried {rate(measurement.throughput_per_s)}"


def _times_serial(serial: Measurement, batched: Measurement) -> str:
    bound = "at least " if kept_up(batched) and not kept_up(serial) else ""
    return f"{bound}{times(gain(batched, serial))} times {serial.variant}"
