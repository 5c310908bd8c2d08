"""Which columns of a file are the model's inputs, and whether its first items fit: decided before anything is sent."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import pyarrow as pa
import pyarrow.parquet as pq

from tritonbatch.client.contract import Contract
from tritonbatch.errors import InvalidInput
from tritonbatch.offline.reading import Columns, IdKind, read_rows
from tritonbatch.offline.shaping import Item, fitted
from tritonbatch.offline.source import Source

PROBED_ROWS = 100


def columns_of(source: Source, contract: Contract) -> Columns:
    """Which columns of *source* the model takes.

    Raises:
        InvalidInput: an input of the model is missing, or the ids are neither integers nor text.
    """
    required = [tensor.name for tensor in contract.inputs.values() if not tensor.optional]
    if source.kind == "npy":
        only = required or list(contract.inputs)
        if len(only) != 1:
            raise InvalidInput(
                f"Model {contract.model} takes the inputs {', '.join(sorted(only))} and an .npy holds one: expected "
                "columns of these names; use Parquet or JSONL."
            )
        return Columns((only[0],), "row")
    if source.kind == "parquet":
        schemas = [pq.read_schema(file.path) for file in source.files]
        for file, schema in zip(source.files, schemas, strict=True):
            _check_once(str(file.path), contract, schema.names)
            _check_columns(str(file.path), contract, required, schema.names)
            if _parquet_ids(contract, schema) != _parquet_ids(contract, schemas[0]):
                raise InvalidInput(f"{file.path} has other ids than {source.files[0].path}: expected the same type.")
        names = {name for schema in schemas for name in schema.names}
        inputs = tuple(name for name in contract.inputs if name in names)
        return Columns(inputs, _parquet_ids(contract, schemas[0]))
    return Columns(tuple(contract.inputs), _json_ids(source, contract))


def _check_once(where: str, contract: Contract, names: Sequence[str]) -> None:
    if twice := sorted(name for name in {"id", *contract.inputs} if names.count(name) > 1):
        raise InvalidInput(
            f"{where} has {names.count(twice[0])} columns named {twice[0]}: expected one; rename or drop the others."
        )


def _check_columns(where: str, contract: Contract, required: Sequence[str], names: Sequence[str]) -> None:
    if missing := [name for name in required if name not in names]:
        raise InvalidInput(
            f"{where} has the columns {', '.join(names)}: expected {', '.join(missing)} too, an input of model "
            f"{contract.model}; rename or add it."
        )


def _parquet_ids(contract: Contract, schema: pa.Schema) -> IdKind:
    if "id" in contract.inputs or "id" not in schema.names:
        return "row"
    kind = schema.field("id").type
    if pa.types.is_integer(kind):
        return "int"
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return "text"
    raise InvalidInput(f"The column id is {kind}: expected integers or text; cast it, or rename it if it is no id.")


def _json_ids(source: Source, contract: Contract) -> IdKind:
    if "id" in contract.inputs:
        return "row"
    probed = islice(read_rows(source, Columns(("id",), "row")), PROBED_ROWS)
    found = next((row.values["id"] for row in probed if row.values.get("id") is not None), None)
    if found is None:
        return "row"
    if type(found) not in {int, str}:
        raise InvalidInput(
            f"The first id is {found!r:.60}: expected an integer or text; rename the key if it is no id."
        )
    return "int" if type(found) is int else "text"


def probe(source: Source, columns: Columns, contract: Contract) -> list[Item]:
    """The items among the first PROBED_ROWS that fit the model.

    Raises:
        InvalidInput: none does, so that the input as a whole must be wrong; the message has the first reason.
    """
    reasons, items = [], []
    for row in islice(read_rows(source, columns), PROBED_ROWS):
        item = fitted(row, contract)
        reasons.append(f"{row.where}: {item}") if isinstance(item, str) else items.append(item)
    if not items:
        raise InvalidInput(
            f"None of the first {len(reasons)} items of {source.path} fits model {contract.model}; {reasons[0]}"
        )
    return items
