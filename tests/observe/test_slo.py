"""What can be written as a service level objective."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.observe.slo import slo


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("p99=20ms", [("p99=20ms", 0.01, 20.0)]),
        ("p99.9=1.5s", [("p99.9=1.5s", 0.001, 1500.0)]),
        ("p50=500us", [("p50=500us", 0.5, 0.5)]),
        (" p99 = 20 ms , errors = 0.1 %", [("p99=20ms", 0.01, 20.0), ("errors=0.1%", 0.001, float("inf"))]),
        (
            "p99=20ms,p50=5ms,errors=.5%",
            [("p99=20ms", 0.01, 20), ("p50=5ms", 0.5, 5), ("errors=.5%", 0.005, float("inf"))],
        ),
    ],
)
def test_objectives_are_read(text: str, expected: list[tuple[str, float, float]]) -> None:
    """Percentiles with a unit, errors with a percentage, in the order written."""
    found = slo(text)
    assert [objective.text for objective in found] == [name for name, _, _ in expected]
    for objective, (_, allowed, limit_ms) in zip(found, expected, strict=True):
        assert objective.allowed == pytest.approx(allowed)
        assert objective.limit_ms == pytest.approx(limit_ms)
        assert objective.quantile == pytest.approx(1 - allowed)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "Cannot read ''"),
        ("p99", "Cannot read 'p99'"),
        ("p99=20", "units us, ms, s"),
        ("p99=20min", "Cannot read"),
        ("p99=20ms,", "Cannot read ''"),
        ("p0=20ms", "between 0 and 100"),
        ("p100=20ms", "between 0 and 100"),
        ("p99=0ms", "a time above 0"),
        ("p99=-1ms", "Cannot read"),
        ("p99=nanms", "Cannot read"),
        ("errors=0%", "percentage of errors between"),
        ("errors=1", "Cannot read"),
        ("p99=20ms,p99=30ms", "each percentile once"),
    ],
)
def test_what_cannot_be_an_objective_is_said(text: str, says: str) -> None:
    """One sentence that names the part and what was expected."""
    with pytest.raises(InvalidInput, match=says):
        slo(text)


@given(st.text(alphabet="p0123456789.=msu%,e ors\t", max_size=30))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Nothing but objectives or InvalidInput comes back."""
    try:
        found = slo(text)
    except InvalidInput:
        return
    assert all(0 < objective.allowed < 1 and objective.limit_ms > 0 for objective in found)
