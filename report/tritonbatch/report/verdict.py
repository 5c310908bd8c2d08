"""What the measurements of one model say: a sentence to act on, and the explanation of its factor through t(B)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tritonbatch.errors import InvalidInput
from tritonbatch.observe.measurement import Measurement, service_curve
from tritonbatch.report.advice import advise
from tritonbatch.report.evidence import gather, is_serial
from tritonbatch.report.explanation import Gain, Prediction, explain, gain_table, predict
from tritonbatch.report.wording import by_model, in_load_order


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What to serve and why. *explanation* has one paragraph per line; *predictions* are for the heaviest load."""

    model: str
    sentence: str
    explanation: str
    gains: tuple[Gain, ...]
    predictions: tuple[Prediction, ...]


def verdicts(measurements: Iterable[Measurement]) -> tuple[Verdict, ...]:
    """The verdict on each model, in order of appearance."""
    return tuple(verdict(group) for group in by_model(measurements).values())


def verdict(measurements: Sequence[Measurement]) -> Verdict:
    """What *measurements*, all of one model, say.

    Raises:
        InvalidInput: there are none, or they are of several models.
    """
    models = sorted({m.model for m in measurements})
    if len(models) != 1:
        raise InvalidInput(f"A verdict is about one model, got {len(models)} ({', '.join(models)}); group them first.")
    heaviest = in_load_order(measurements)[-1].load.name
    # Failing variants are explained too: what they carried is a measurement, only no recommendation.
    heavy = {m.variant: m for m in measurements if m.load.name == heaviest}
    serial = next((m for m in heavy.values() if is_serial(m)), None)
    curve = service_curve(measurements)
    return Verdict(
        model=models[0],
        sentence=advise(gather(measurements)),
        explanation=explain(heavy, serial, curve),
        gains=gain_table(measurements),
        predictions=tuple(predict(m, curve) for m in heavy.values()),
    )
