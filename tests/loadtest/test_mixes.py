"""Batch sizes and classes: the shares asked for, drawn apart from the arrivals and from each other."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tritonbatch.errors import InvalidInput
from tritonbatch.loadtest.mixes import Arrivals, classes, mix, with_batches, with_classes
from tritonbatch.loadtest.patterns import pattern

WEIGHTS = st.lists(st.floats(0.01, 100).map(lambda weight: round(weight, 3)), min_size=1, max_size=6)


def arrivals(count: int = 20_000) -> Arrivals:
    """Evenly spaced ones."""
    return Arrivals.at(np.arange(count, dtype=np.int64))


@settings(deadline=None, derandomize=True)
@given(WEIGHTS, st.integers(0, 2**40))
def test_shares_are_those_of_the_weights(weights: list[float], seed: int) -> None:
    """Each size and each class occurs within five sigma of its share, and nothing else occurs."""
    shares = np.array(weights) / sum(weights)
    batches = mix(",".join(f"{2**i}:{weight}" for i, weight in enumerate(weights)))
    kinds = classes(",".join(f"c{i}={i + 1}:{weight}" for i, weight in enumerate(weights)))
    drawn = with_classes(with_batches(arrivals(), batches, seed), kinds, seed)
    for found in (np.log2(drawn.rows).astype(int), drawn.priority - 1):
        counts = np.bincount(found, minlength=len(weights))
        assert len(counts) == len(weights)
        bound = 5 * (20_000 * shares * (1 - shares)) ** 0.5 + 5
        assert (np.abs(counts - 20_000 * shares) <= bound).all()
    assert batches.mean_rows == pytest.approx(float((2 ** np.arange(len(weights)) * shares).sum()))


@given(st.integers(0, 2**40))
def test_the_same_seed_gives_the_same_draw_and_touches_nothing_else(seed: int) -> None:
    """A mix changes rows only, classes change priorities only; neither depends on whether the other is there."""
    plain = pattern("poisson:rate=500,requests=300").arrivals(seed)
    batches, kinds = mix("1:1,4:1"), classes("a=1:1,b=2:1")
    both = with_classes(with_batches(plain, batches, seed), kinds, seed)
    np.testing.assert_array_equal(both.at_ns, plain.at_ns)
    np.testing.assert_array_equal(both.rows, with_batches(plain, batches, seed).rows)
    np.testing.assert_array_equal(both.priority, with_classes(plain, kinds, seed).priority)
    assert (with_batches(plain, batches, seed).priority == 0).all()
    assert (plain.rows == 1).all()
    assert (both.rows.dtype, both.priority.dtype) == (np.uint32, np.uint8)


def test_equal_seeds_are_independent_between_dimensions() -> None:
    """Rows, priorities and gaps drawn with one seed do not move together."""
    plain = pattern("poisson:rate=500,requests=20000").arrivals(7)
    drawn = with_classes(with_batches(plain, mix("1:1,2:1"), 7), classes("a=1:1,b=2:1"), 7)
    gaps = np.diff(plain.at_ns, prepend=0)
    for one, other in ((drawn.rows, drawn.priority), (drawn.rows, gaps), (drawn.priority, gaps)):
        assert abs(np.corrcoef(one, other)[0, 1]) < 0.04


def test_a_mix_replaces_the_rows_of_a_trace_only_when_asked() -> None:
    """Different seeds give different rows, and the names of classes are kept for whoever reports."""
    assert (with_batches(arrivals(), mix("1:1,2:1"), 1).rows != with_batches(arrivals(), mix("1:1,2:1"), 2).rows).any()
    kinds = classes("interactive=1:0.7, bulk=2:0.3")
    assert kinds.names == ("interactive", "bulk")
    assert kinds.priorities == (1, 2)
    assert kinds.shares == (pytest.approx(0.7), pytest.approx(0.3))
    assert [kinds.name_of(priority) for priority in (0, 1, 2)] == ["0", "interactive", "bulk"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has the weight ''"),
        ("8", "has the weight ''"),
        ("1:0.8,", "has the weight ''"),
        ("1:0", "has the weight '0': expected a number above 0"),
        ("1:-1", "has the weight '-1'"),
        ("1:nan", "has the weight 'nan'"),
        ("1:inf", "has the weight 'inf'"),
        ("0:1", "has '0': expected a whole number from 1 to 4294967295"),
        ("1.5:1", r"has '1\.5'"),
        ("4294967296:1", "has '4294967296'"),
        ("1:1,1:2", "has 1 twice"),
    ],
)
def test_mixes_that_cannot_be_are_refused(text: str, says: str) -> None:
    """One sentence that names the mistake and shows an example."""
    with pytest.raises(InvalidInput, match=says) as refusal:
        mix(text)
    assert "write for example 1:0.8,8:0.2" in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "name no class"),
        ("1:1", "name no class"),
        ("=1:1", "name no class"),
        ("a=1", "has the weight ''"),
        ("a=y:1", "has 'y': expected a whole number from 0 to 255"),
        ("a=1x:1", "has '': expected a whole number from 1"),
        ("a=1x0:1", "has '0': expected a whole number from 1"),
        ("a=256:1", "has '256'"),
        ("a=1:1,a=2:1", "has a twice"),
        ("a=1:1,b=1:1", "has 1 twice"),
    ],
)
def test_classes_that_cannot_be_are_refused(text: str, says: str) -> None:
    """One sentence that names the mistake and shows an example."""
    with pytest.raises(InvalidInput, match=says) as refusal:
        classes(text)
    assert "write for example interactive=1:0.7,bulk=2:0.3" in str(refusal.value)


def test_a_negative_seed_is_refused() -> None:
    """Neither draw takes one."""
    with pytest.raises(InvalidInput, match="seed is -1"):
        with_batches(arrivals(), mix("1:1"), -1)
    with pytest.raises(InvalidInput, match="seed is -1"):
        with_classes(arrivals(), classes("a=1:1"), -1)


def test_a_class_may_bring_its_own_rows() -> None:
    """``bulk=2x8`` gives each bulk request eight rows and leaves the others as the mix says."""
    arrivals = with_batches(Arrivals.at(np.arange(1000, dtype=np.int64)), mix("1:0.5,2:0.5"), 1)
    drawn = with_classes(arrivals, classes("interactive=1:0.7,bulk=2x8:0.3"), 1)
    bulk = drawn.priority == 2
    assert set(drawn.rows[bulk].tolist()) == {8}
    np.testing.assert_array_equal(drawn.rows[~bulk], arrivals.rows[~bulk])
