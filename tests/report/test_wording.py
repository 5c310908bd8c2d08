"""Numbers as text."""

from __future__ import annotations

import pytest

from tritonbatch.report.wording import listing, milliseconds, per_second, percent, rate, significant


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (0.01234, "0.0123"),
        (5.0, "5.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (123.4, "123"),
        (1234.5, "1,230"),
        (60_123.0, "60,100"),
        (-3.456, "-3.46"),
        (float("nan"), "\N{EN DASH}"),
        (float("inf"), "\N{EN DASH}"),
    ],
)
def test_significant(value: float, text: str) -> None:
    """Three significant digits, thousands separated, a dash for what is unknown."""
    assert significant(value) == text


def test_units() -> None:
    """Rates and durations of a sentence carry their unit and no needless zero."""
    assert (rate(54.0), rate(1902.4), rate(100.0)) == ("54/s", "1,900/s", "100/s")
    assert (milliseconds(6.04), milliseconds(14.2), milliseconds(195.4)) == ("6.0 ms", "14 ms", "195 ms")
    assert (per_second(1902.4), per_second(88.46), per_second(float("nan"))) == ("1,902", "88.5", "\N{EN DASH}")


def test_a_rare_failure_never_reads_zero() -> None:
    """A share that is not nothing is not written as nothing."""
    assert [percent(share) for share in (0.0, 0.0001, 0.006, 0.5)] == ["0.0%", "<0.1%", "0.6%", "50%"]


def test_listing() -> None:
    """Names are joined as in a sentence."""
    assert [listing(names) for names in ([], ["a"], ["a", "b"], ["a", "b", "c"])] == ["", "a", "a and b", "a, b and c"]
