"""Check and convert arrays against what a model declares, before anything is sent. Pure: contract in, verdict out."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc.service_pb2 import ModelMetadataResponse
from tritonclient.utils import np_to_triton_dtype, triton_to_np_dtype

from tritonbatch.client.contract import Contract, Tensor
from tritonbatch.client.errors import InvalidRequest

Array = npt.NDArray[Any]
Inputs = Mapping[str, npt.ArrayLike]


def checked(contract: Contract, inputs: Inputs, *, add_batch_axis: bool = False) -> tuple[int, dict[str, Array]]:
    """Check names, types, shapes and batch of *inputs*; return the number of rows and the arrays to send.

    Arrays are converted where nothing is lost: to a wider type, between integer types that hold every value, text to
    bytes (UTF-8). Floats are never narrowed: whether that is harmless would depend on the values of the day. Lists are
    literals and take the declared type (1.0 is also an integer). *add_batch_axis* makes one item of each array a batch
    of one.

    Raises:
        InvalidRequest: names the model, the tensor, what it got and what it expected.
    """
    check_names(contract, inputs)
    if add_batch_axis and contract.max_batch_size == 0:
        raise InvalidRequest(f"Model {contract.model} has max_batch_size 0, so there is no batch axis to add.")
    arrays = {}
    for name, value in inputs.items():
        tensor = contract.inputs[name]
        array = converted(contract.model, tensor, value)
        if add_batch_axis:
            check_shape(contract, tensor, array.shape, tensor.shape[1:])
            arrays[name] = array[None]
        else:
            hint = " The batch axis is missing; add_batch_axis=True adds it." if contract.max_batch_size else ""
            check_shape(contract, tensor, array.shape, tensor.shape, hint)
            arrays[name] = array
    return _rows(contract, arrays), arrays


def checked_item(contract: Contract, inputs: Inputs, number: int) -> dict[str, Array]:
    """Check item *number* of several as a batch of one; the error begins with the number."""
    try:
        return checked(contract, inputs, add_batch_axis=True)[1]
    except InvalidRequest as error:
        raise InvalidRequest(f"Item {number}: {error}") from error


def check_names(contract: Contract, inputs: Inputs) -> None:
    """Raise InvalidRequest where *inputs* is no mapping, or its names are not those that the model takes."""
    if not isinstance(inputs, Mapping):
        raise InvalidRequest(
            f"Model {contract.model}: got {type(inputs).__name__} as inputs; expected a mapping of names to arrays, "
            f"with {', '.join(sorted(contract.inputs))}{_frame_hint(contract, inputs)}."
        )
    required = {tensor.name for tensor in contract.inputs.values() if not tensor.optional}
    if not required <= set(inputs) <= set(contract.inputs):
        got = ", ".join(sorted(map(str, inputs))) or "none"
        names = sorted(contract.inputs)
        expected = ", ".join(f"{name} (optional)" if contract.inputs[name].optional else name for name in names)
        raise InvalidRequest(f"Model {contract.model} got the inputs {got}; expected {expected}.")


def _frame_hint(contract: Contract, inputs: object) -> str:
    if not hasattr(inputs, "to_numpy"):  # of pandas, polars or Arrow
        return ""
    name = next(iter(contract.inputs), "x")
    return f": a dict of arrays, as {{{name!r}: df.to_numpy('float32')}}"


def check_shape(
    contract: Contract, tensor: Tensor, shape: tuple[int, ...], wanted: tuple[int, ...], missing_axis: str = ""
) -> None:
    """Raise InvalidRequest where *shape* is not *wanted*; with the hint *missing_axis* where it has one axis less."""
    if len(wanted) == len(shape) and all(want in (-1, have) for want, have in zip(wanted, shape, strict=True)):
        return
    any_size = ", -1 meaning any size" if -1 in wanted else ""
    hint = missing_axis if len(shape) == len(wanted) - 1 else ""
    raise InvalidRequest(
        f"Model {contract.model}, input {tensor.name}: got shape {shape}; expected {wanted}{any_size}.{hint}"
    )


def _rows(contract: Contract, arrays: Mapping[str, Array]) -> int:
    if contract.max_batch_size == 0:
        return 1
    counts = {name: len(array) for name, array in arrays.items()}
    if len(set(counts.values())) > 1:
        raise InvalidRequest(f"Model {contract.model}: the inputs have different numbers of rows ({counts}).")
    count = next(iter(counts.values()))
    if not 1 <= count <= contract.max_batch_size:
        hint = "; infer_many splits more" if count else ""
        raise InvalidRequest(
            f"Model {contract.model}: got a batch of {count}; expected 1 to {contract.max_batch_size} "
            f"(max_batch_size){hint}."
        )
    return count


def converted(model: str, tensor: Tensor, value: npt.ArrayLike) -> Array:
    """*value* as the array to send for *tensor*; raises InvalidRequest where its type does not fit."""
    where = f"Model {model}, input {tensor.name}"
    literal = not hasattr(value, "dtype")  # the tensors of other libraries have one too
    if np.ma.is_masked(value):
        raise InvalidRequest(f"{where}: the array has masked values; fill them with .filled(value).")
    array = _as_array(where, value, text=literal and tensor.datatype == "BYTES")
    if tensor.datatype == "BYTES":
        return _as_text(where, array)
    wanted = np.dtype(triton_to_np_dtype(tensor.datatype))
    if array.dtype == wanted:
        return array
    if literal and (not array.size or (array.dtype.kind == "f" and wanted.kind in "fV")):
        return _narrowed(where, array, wanted)
    if literal and array.dtype.kind == "f" and wanted.kind in "iu":
        return _exact(where, _whole(where, array, wanted), wanted)
    # NumPy calls 64-bit integers to FP64 safe, which they are up to 2**53.
    if np.can_cast(array.dtype, wanted, "safe") and (array.dtype.itemsize < 8 or array.dtype.kind == wanted.kind):
        return array.astype(wanted)
    if array.dtype.kind in "iu" and wanted.kind in "iufV":
        return _exact(where, array, wanted)
    found = f"{array.dtype} ({np_to_triton_dtype(array.dtype) or 'no Triton type'})"
    if array.dtype == object:
        found = f"object that holds {_first_odd(array)}"
    hint = f"; it would lose digits: convert with astype('{wanted}')" if array.dtype.kind == "f" == wanted.kind else ""
    raise InvalidRequest(f"{where}: got {found}; expected {tensor.datatype}{hint}.")


def _as_array(where: str, value: npt.ArrayLike, *, text: bool) -> Array:
    try:
        return np.asarray(value, dtype=object if text else None)
    except Exception as error:  # each library has its own for a tensor that NumPy cannot read
        if isinstance(value, (list, tuple)) and isinstance(error, ValueError):
            raise InvalidRequest(
                f"{where}: the lists have different lengths ({error}); expected a full array."
            ) from error
        raise InvalidRequest(
            f"{where}: got {type(value).__name__}, which cannot be read as an array ({error}); give a NumPy array, of "
            "a PyTorch tensor .detach().cpu().float().numpy()."
        ) from error


def _first_odd(array: Array) -> str:
    """The first of *array*'s objects that is no number, or else no number of a usual size, and where it stands."""
    numbers = (bool, int, float, np.number, np.bool_)
    odd = [(at, item) for at, item in np.ndenumerate(array) if not isinstance(item, numbers)]
    large = [(at, item) for at, item in np.ndenumerate(array) if isinstance(item, int) and abs(item) >= 2**63]
    at, item = next(iter(odd or large or np.ndenumerate(array)), ((), None))
    return f"{item!r:.40} at {list(at)}"


def _whole(where: str, literal: Array, wanted: np.dtype[Any]) -> Array:
    """Written-down floats as integers, when each is a whole number that a float holds for certain."""
    wrong = ~((literal == np.floor(literal)) & (np.abs(literal) <= 2**53))
    if wrong.any():
        raise InvalidRequest(
            f"{where}: got {literal.dtype} (FP64) with {literal[wrong][0]}; expected whole numbers that {wanted} holds."
        )
    return literal.astype(np.int64)


def _narrowed(where: str, literal: Array, wanted: np.dtype[Any]) -> Array:
    """Written-down floats in their declared type: rounded, but never to infinity."""
    with np.errstate(over="ignore"):
        array = literal.astype(wanted)
    too_large = np.isinf(array.astype(literal.dtype)) & ~np.isinf(literal)
    if too_large.any():
        raise InvalidRequest(f"{where}: got {literal[too_large][0]}; expected what {wanted} holds.")
    return array


def _exact(where: str, array: Array, wanted: np.dtype[Any]) -> Array:
    """Integers in another type, when that type holds each of them exactly."""
    if not array.size:
        return array.astype(wanted)
    if wanted.kind in "iu":
        lowest, highest = int(np.iinfo(wanted).min), int(np.iinfo(wanted).max)
    else:
        # Beyond 2**digits a float no longer holds every integer; 8 digits are those of bfloat16.
        highest = int(2 ** (np.finfo(wanted).nmant + 1 if wanted.kind == "f" else 8))
        lowest = -highest
    for value in (int(array.min()), int(array.max())):
        if not lowest <= value <= highest:
            held = "integers" if wanted.kind in "iu" else "every integer only"
            raise InvalidRequest(
                f"{where}: got {value} ({array.dtype}); expected what {wanted} holds, {held} from {lowest} to "
                f"{highest}."
            )
    return array.astype(wanted)


def _as_text(where: str, array: Array) -> Array:
    if array.dtype.kind in "SU":
        return array.astype(object)
    if array.dtype != object:
        raise InvalidRequest(f"{where}: got {array.dtype}; expected text (str or bytes) for BYTES.")
    for at, item in np.ndenumerate(array):
        if not isinstance(item, (str, bytes)):
            found = f"{type(item).__name__} {item!r}"
            raise InvalidRequest(f"{where}: got {found:.60} at {list(at)}; expected text (str or bytes) for BYTES.")
    return array


def random_inputs(metadata: ModelMetadataResponse, rows: int, rng: np.random.Generator) -> dict[str, Array]:
    """*rows* rows for every input from its declared type and shape: normal floats, integers 0 and 1, free sizes 1.

    It knows nothing of what the numbers mean: for a model with a vocabulary or free shapes, give real samples.

    Raises:
        InvalidRequest: an input is text, for which there is no sensible guess.
    """
    return {tensor.name: _random(metadata.name, tensor, rows, rng) for tensor in metadata.inputs}


def _random(model: str, tensor: ModelMetadataResponse.TensorMetadata, rows: int, rng: np.random.Generator) -> Array:
    shape = (rows, *(max(size, 1) for size in tensor.shape[1:]))
    kind = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64, "BOOL": np.bool_}.get(tensor.datatype)
    if tensor.datatype.startswith(("INT", "UINT")):
        return rng.integers(0, 2, shape).astype(np.dtype(tensor.datatype.lower()))
    if kind is None:
        raise InvalidRequest(
            f"Model {model}, input {tensor.name}: cannot make up {tensor.datatype} values; give samples in an .npz."
        )
    return rng.standard_normal(shape).astype(kind) if kind is not np.bool_ else rng.random(shape) < 0.5
