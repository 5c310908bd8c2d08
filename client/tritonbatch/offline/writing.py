"""How results are written: part by part in the format of the output, and then all parts in one file."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from tritonclient.utils import triton_to_np_dtype

from tritonbatch.client.contract import Contract, Tensor
from tritonbatch.client.tensors import Array
from tritonbatch.errors import InvalidInput
from tritonbatch.offline.reading import Id, IdKind
from tritonbatch.offline.source import Kind

GROUP_BYTES = 16 << 20

Outputs = dict[str, Array]
"""The outputs of one item, without the batch axis."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The columns of the results."""

    kind: Kind
    ids: IdKind
    outputs: tuple[Tensor, ...]


def layout(kind: Kind, ids: IdKind, contract: Contract) -> Layout:
    """The layout of the results of a model in a file of *kind*.

    Raises:
        InvalidInput: the kind cannot hold them.
    """
    outputs = tuple(contract.outputs.values())
    if kind != "npy":
        if "id" in contract.outputs:
            raise InvalidInput(f"Model {contract.model} has an output named id, as the column of ids: write an .npy.")
        return Layout(kind, ids, outputs)
    names = ", ".join(output.name for output in outputs)
    if len(outputs) != 1 or outputs[0].datatype == "BYTES" or -1 in outputs[0].shape[1:]:
        shapes = "; ".join(f"{output.datatype} {list(output.shape[1:])}" for output in outputs)
        raise InvalidInput(
            f"The output is an .npy and model {contract.model} answers {names} ({shapes}): expected one output of "
            "numbers with fixed dims; write Parquet or JSONL."
        )
    return Layout(kind, ids, outputs)


def write_part(path: Path, form: Layout, ids: Sequence[Id], answers: Sequence[Outputs | None]) -> None:
    """Write the results of one part to *path*; an item that failed (None) has no row, in an .npy a filler.

    The filler is NaN, and 0 for integers and booleans: rows of an .npy have no ids but their place.
    """
    if form.kind == "npy":
        with path.open("wb") as file:  # given a path, np.save would change its name
            np.save(file, _filled(form.outputs[0], answers))
        return
    kept = [(id_, answer) for id_, answer in zip(ids, answers, strict=True) if answer is not None]
    if form.kind == "jsonl":
        with path.open("w", encoding="utf-8") as lines:
            for id_, answer in kept:
                line = {"id": id_, **{output.name: _plain(answer[output.name]) for output in form.outputs}}
                lines.write(f"{json.dumps(line, ensure_ascii=False)}\n")
        return
    pq.write_table(_table(form, [id_ for id_, _ in kept], [answer for _, answer in kept]), path)


def assemble(parts: Sequence[Path], target: Path, form: Layout, rows: int) -> None:
    """Put the files of all *parts* together in *target*, one after the other; *rows* with the items that failed."""
    if form.kind == "jsonl":
        with target.open("wb") as whole:
            for part in parts:
                with part.open("rb") as file:
                    shutil.copyfileobj(file, whole)
    elif form.kind == "npy":
        _assemble_npy(parts, target, form.outputs[0], rows)
    else:
        with pq.ParquetWriter(target, _schema(form)) as writer:
            for table in _row_groups(parts):
                writer.write_table(table)


def checked_text(answer: Outputs, form: Layout) -> str:
    """Why *answer* cannot be written in this layout, or nothing: JSON holds text only."""
    if form.kind == "jsonl":
        for name, array in answer.items():
            try:
                _plain(array)
            except UnicodeDecodeError as error:
                return f"The output {name} is not text in UTF-8 ({error.reason}); write Parquet to keep its bytes."
    return ""


def _plain(array: Array) -> Any:
    """*array* as JSON holds it: bytes as text, and null for NaN and the infinities, which JSON does not have."""
    if array.dtype == object:
        texts: Array = np.vectorize(lambda item: item.decode() if isinstance(item, bytes) else item, otypes=[object])(
            array
        )
        return texts.tolist()
    if array.dtype.kind == "V":  # bfloat16
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():
        array = array.astype(object)
        array[~finite] = None
    return array.tolist()


def _filled(output: Tensor, answers: Sequence[Outputs | None]) -> Array:
    dtype = _dtype(output)
    filler = np.full(output.shape[1:], np.nan if dtype.kind == "f" else 0, dtype)
    return np.stack([filler if answer is None else answer[output.name].astype(dtype) for answer in answers])


def _assemble_npy(parts: Sequence[Path], target: Path, output: Tensor, rows: int) -> None:
    header = {
        "descr": np.lib.format.dtype_to_descr(_dtype(output)),
        "fortran_order": False,
        "shape": (rows, *output.shape[1:]),
    }
    with target.open("wb") as whole:
        np.lib.format.write_array_header_2_0(whole, header)
        for part in parts:
            whole.write(np.load(part, allow_pickle=False).tobytes())


def _row_groups(parts: Sequence[Path]) -> Iterator[pa.Table]:
    """The tables of *parts*, small ones joined: many tiny row groups make a file slow to read."""
    joined: list[pa.Table] = []
    for part in parts:
        joined.append(pq.read_table(part, memory_map=False))
        if sum(table.nbytes for table in joined) >= GROUP_BYTES:
            yield pa.concat_tables(joined).combine_chunks()
            joined = []
    if joined:
        yield pa.concat_tables(joined).combine_chunks()


def _table(form: Layout, ids: Sequence[Id], answers: Sequence[Outputs]) -> pa.Table:
    schema = _schema(form)
    columns: list[pa.Array[Any]] = [pa.array(list(ids), schema.field("id").type)]
    columns += [_column(output, [answer[output.name] for answer in answers]) for output in form.outputs]
    return pa.Table.from_arrays(columns, schema=schema)


def _schema(form: Layout) -> pa.Schema:
    fields: list[pa.Field[Any]] = [pa.field("id", pa.string() if form.ids == "text" else pa.int64())]
    fields += [pa.field(output.name, _column_type(output)) for output in form.outputs]
    return pa.schema(fields)


def _column_type(output: Tensor) -> pa.DataType:
    kind: pa.DataType = pa.binary() if output.datatype == "BYTES" else pa.from_numpy_dtype(_dtype(output))
    for size in reversed(output.shape[1:]):
        kind = pa.list_(kind) if size < 0 else pa.list_(kind, size)
    return kind


def _column(output: Tensor, values: Sequence[Array]) -> pa.Array[Any]:
    kind, dims = _column_type(output), output.shape[1:]
    if not values or -1 in dims or output.datatype == "BYTES":
        return pa.array([_as_bytes(value) for value in values], kind)
    column: pa.Array[Any] = pa.array(np.stack(values).astype(_dtype(output)).reshape(-1))
    for size in reversed(dims):
        column = pa.FixedSizeListArray.from_arrays(column, size)
    return column


def _as_bytes(array: Array) -> Any:
    return array.astype(np.float32).tolist() if array.dtype.kind == "V" else array.tolist()


def _dtype(output: Tensor) -> np.dtype[Any]:
    # NumPy's files and Arrow have no bfloat16; float32 holds each of its values.
    return np.dtype(np.float32 if output.datatype == "BF16" else triton_to_np_dtype(output.datatype))
