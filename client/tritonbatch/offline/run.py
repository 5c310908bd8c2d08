"""One part: its rows become full batches, a few under way at a time, and the answers one file in the rows' order."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from tritonbatch.client.contract import Contract
from tritonbatch.errors import InvalidInput
from tritonbatch.offline.parts import Entry, Part, finish, part_file
from tritonbatch.offline.reading import Id, Row
from tritonbatch.offline.sending import Outcome, Sender, outcomes
from tritonbatch.offline.shaping import Item, fitted, signature
from tritonbatch.offline.writing import Layout, checked_text, write_part
from tritonbatch.whole_file import whole_file

Place = tuple[int, Item]
"""Where in the part an item is, and its tensors."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What running any part takes: the model's contract, the way to it, the results' place and layout."""

    contract: Contract
    sender: Sender
    in_flight: int
    output: Path
    form: Layout


@dataclass(slots=True)
class Gathered:
    """What has come of a part so far; *found* has an entry for every row in the end."""

    ids: list[Id] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    found: dict[int, Outcome] = field(default_factory=dict)


def run_part(outlook: Outlook, part: Part, rows: Iterator[Row], advance: Callable[[int], None]) -> Entry:
    """Take the rows of *part* from *rows*, get their answers, and write its files; *advance* hears of every batch.

    Raises:
        InvalidInput: the input has fewer rows than it had.
        RequestFailed: the server was away for longer than the patience; nothing of this part is kept.
    """
    gathered = Gathered()
    with ThreadPoolExecutor(outlook.in_flight, thread_name_prefix="offline") as pool:
        try:
            batches = _batches(outlook, islice(rows, part.rows), gathered, advance)
            _send_all(outlook, batches, pool, gathered, advance)
        except BaseException:
            outlook.sender.stop.set()  # so that no thread waits for a server on behalf of a job that has ended
            raise
    if len(gathered.ids) != part.rows:
        raise InvalidInput(
            f"The input ended at row {part.start + len(gathered.ids)}: expected {part.stop}; it changed while it was "
            "read, so remove the folder of parts and start anew."
        )
    return _write(outlook, part, gathered)


def _batches(
    outlook: Outlook, rows: Iterator[Row], gathered: Gathered, advance: Callable[[int], None]
) -> Iterator[list[Place]]:
    """Full batches of one shape each, then what is left; items that do not fit the model are settled at once."""
    collected: dict[Any, list[Place]] = {}
    for at, row in enumerate(rows):
        gathered.ids.append(row.id)
        gathered.where.append(row.where)
        item = fitted(row, outlook.contract)
        if isinstance(item, str):
            gathered.found[at] = item
            advance(1)
            continue
        alike = collected.setdefault(signature(item), [])
        alike.append((at, item))
        if len(alike) == outlook.sender.batch:
            yield collected.pop(signature(item))
    yield from collected.values()


def _send_all(
    outlook: Outlook,
    batches: Iterator[list[Place]],
    pool: ThreadPoolExecutor,
    gathered: Gathered,
    advance: Callable[[int], None],
) -> None:
    under_way: dict[Future[list[Outcome]], list[int]] = {}

    def settle() -> None:
        for future in wait(under_way, return_when=FIRST_COMPLETED).done:
            places = under_way.pop(future)
            gathered.found.update(zip(places, future.result(), strict=True))
            advance(len(places))

    for batch in batches:
        items = [item for _, item in batch]
        under_way[pool.submit(outcomes, outlook.sender, items)] = [at for at, _ in batch]
        if len(under_way) >= outlook.in_flight:
            settle()
    while under_way:
        settle()


def _write(outlook: Outlook, part: Part, gathered: Gathered) -> Entry:
    errors: list[dict[str, Any]] = []
    answers = []
    for at, id_ in enumerate(gathered.ids):
        found = gathered.found[at]
        error = found if isinstance(found, str) else checked_text(found, outlook.form)
        answers.append(None if isinstance(found, str) or error else found)
        if error:
            errors.append({"id": id_, "row": part.start + at, "where": gathered.where[at], "error": error})
    with whole_file(part_file(outlook.output, part, ".errors.jsonl")) as temporary:
        temporary.write_text("".join(f"{json.dumps(error, ensure_ascii=False)}\n" for error in errors), "utf-8")
    with whole_file(part_file(outlook.output, part, outlook.output.suffix)) as temporary:
        write_part(temporary, outlook.form, gathered.ids, answers)
    return finish(outlook.output, part, len(errors))
