"""Which requests share a batch, when it leaves and who gets what of it: the decisions alone, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tritonbatch.client import ServerError, Unreachable
from tritonbatch.client.gathering import Batch, Gathering, Part, shares
from tritonbatch.errors import RequestFailed


@dataclass(eq=False)
class Caller:
    """A caller of the decision tests: a number to tell it by, and when it came."""

    number: int
    part: Part
    came: int


def caller(number: int, rows: int, kind: str = "a", came: int = 0) -> Caller:
    """A caller with *rows* rows of *kind*."""
    return Caller(number, Part({}, rows, ((kind, np.dtype(np.int8), ()),)), came)


def numbers(batches: Sequence[Batch[Caller]]) -> list[list[int]]:
    """Who is in each of *batches*."""
    return [[each.number for each in batch.calls] for batch in batches]


@pytest.mark.parametrize(
    ("arrivals", "leaving"),
    [
        pytest.param([(0, 1, "a"), (1, 1, "a")], [[], []], id="neither full nor due"),
        pytest.param([(0, 1, "a"), (1, 2, "a"), (2, 1, "a")], [[], [], [[0, 1, 2]]], id="full"),
        pytest.param([(0, 4, "a")], [[[0]]], id="full at once"),
        pytest.param([(0, 3, "a"), (1, 2, "a")], [[], [[0]]], id="a misfit closes the batch and opens the next"),
        pytest.param([(0, 3, "a"), (1, 4, "a")], [[], [[0], [1]]], id="a full misfit leaves as well"),
        pytest.param([(0, 1, "a"), (10, 1, "a")], [[], [[0]]], id="the oldest is due when another one comes"),
        pytest.param([(0, 2, "a"), (1, 2, "b"), (2, 2, "b")], [[], [], [[1, 2]]], id="kinds do not mix"),
        pytest.param([(0, 1, "a"), (1, 1, "b"), (11, 1, "c")], [[], [], [[0], [1]]], id="the oldest kind first"),
    ],
)
def test_a_batch_leaves_when_it_is_full_due_or_closed_by_a_misfit(
    arrivals: list[tuple[int, int, str]], leaving: list[list[list[int]]]
) -> None:
    """With 4 rows and a delay of 10, each arrival (when, rows, kind) makes exactly these batches leave."""
    gathering: Gathering[Caller] = Gathering(4, 10)
    got = [
        numbers(gathering.add(caller(number, rows, kind), came)[1])
        for number, (came, rows, kind) in enumerate(arrivals)
    ]
    assert got == leaving


def test_due_batches_leave_once_and_the_rest_waits() -> None:
    """Only what has waited long enough leaves, a delay of 0 waits for nobody, and draining takes the rest."""
    gathering: Gathering[Caller] = Gathering(4, 10)
    gathering.add(caller(0, 1, "a"), 0)
    gathering.add(caller(1, 1, "b"), 5)
    assert gathering.next_due() == 10
    assert numbers(gathering.due(9)) == []
    assert numbers(gathering.due(10)) == [[0]]
    assert gathering.next_due() == 15
    assert numbers(gathering.drain()) == [[1]]
    assert gathering.next_due() is None
    assert numbers(Gathering[Caller](4, 0).add(caller(2, 1), 0)[1]) == [[2]]


def test_who_withdraws_leaves_room_and_an_empty_batch_is_forgotten() -> None:
    """The rows of a caller that went away are free again, and nothing is due for nobody."""
    gathering: Gathering[Caller] = Gathering(4, 10)
    first, second = caller(0, 3), caller(1, 1)
    batch, _ = gathering.add(first, 0)
    gathering.withdraw(first, batch)
    assert gathering.next_due() is None
    batch, _ = gathering.add(second, 1)
    gathering.add(caller(2, 1), 2)
    gathering.withdraw(second, batch)
    assert numbers(gathering.add(caller(3, 3), 3)[1]) == [[2, 3]]
    gathering.withdraw(second, batch)
    assert batch.rows == 4


@given(
    max_rows=st.integers(1, 6),
    delay=st.integers(0, 5),
    arrivals=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 6), st.sampled_from("ab")), max_size=40),
)
def test_no_schedule_overfills_reorders_loses_or_delays(
    max_rows: int, delay: int, arrivals: list[tuple[int, int, str]]
) -> None:
    """Whatever comes when: no batch above the rows, order kept per kind, each call once, none later than the delay."""
    gathering: Gathering[Caller] = Gathering(max_rows, delay)
    left: list[tuple[float, Batch[Caller]]] = []
    calls: list[Caller] = []

    def pass_time_until(now: float) -> None:
        while (due := gathering.next_due()) is not None and due <= now:
            left.extend((due, batch) for batch in gathering.due(due))

    now = 0
    for number, (gap, rows, kind) in enumerate(arrivals):
        now += gap
        pass_time_until(now)
        calls.append(caller(number, min(rows, max_rows), kind, now))
        left.extend((now, batch) for batch in gathering.add(calls[-1], now)[1])
    pass_time_until(now + delay)

    assert gathering.next_due() is None
    for kind in {each.part.kind for each in calls}:
        of_kind = [batch for _, batch in left if batch.calls[0].part.kind == kind]
        assert [each for batch in of_kind for each in batch.calls] == [each for each in calls if each.part.kind == kind]
    assert sum(len(batch.calls) for _, batch in left) == len(calls)
    for when, batch in left:
        assert batch.rows == sum(each.part.rows for each in batch.calls) <= max_rows
        assert all(0 <= when - each.came <= delay for each in batch.calls)


class OddError(Exception):
    """An exception that cannot be made from its args."""

    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")


@pytest.mark.parametrize(("error", "kind"), [(Unreachable("gone"), Unreachable), (OddError(code=3), RequestFailed)])
def test_a_failure_is_shared_as_one_instance_each(error: Exception, kind: type[Exception]) -> None:
    """Every caller gets an exception of its own with the batch's as its cause; a lone caller gets the original."""
    first, second = shares("m", error, [1, 2])
    assert first is not second
    for share in (first, second):
        assert type(share) is kind
        assert isinstance(share, Exception)
        assert share.__cause__ is error
    assert shares("m", error, [1]) == [error]


def test_an_output_without_the_rows_of_its_batch_is_nobodys() -> None:
    """A model that answers fewer rows than it was sent fails for all, instead of giving rows to the wrong callers."""
    assert [type(share) for share in shares("m", {"y": np.zeros((1, 3))}, [1, 1])] == [ServerError, ServerError]
