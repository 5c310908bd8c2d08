"""What may be sent for what a model declares: a table of types, properties of the conversions, and odd arrays live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tritonclient.grpc.model_config_pb2 import ModelConfig
from tritonclient.utils import triton_to_np_dtype

from tritonbatch.client import Client, Contract, InvalidRequest, Protocol, Tensor
from tritonbatch.client.tensors import checked, checked_item
from tritonbatch.server import EmbeddedServer

TYPES = {
    "BOOL": "bool",
    **{f"{sign}INT{bits}": f"{sign.lower()}int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)},
    "FP16": "float16",
    "BF16": "bfloat16",
    "FP32": "float32",
    "FP64": "float64",
}
WHOLE = [name for name in TYPES if "INT" in name]
ALWAYS = {
    **{name: {*WHOLE, "BOOL", "FP16", "BF16", "FP32", "FP64"} for name in ("BOOL", *WHOLE)},
    "FP16": {"FP16", "FP32", "FP64"},
    "BF16": {"BF16", "FP32", "FP64"},
    "FP32": {"FP32", "FP64"},
    "FP64": {"FP64"},
}
"""From each type, the types that it may be sent as when the values allow it. 1 is a value of all of them."""
for _name in WHOLE:
    ALWAYS[_name] = ALWAYS[_name] - {"BOOL"}


def _contract(datatype: str, shape: tuple[int, ...] = (-1, 2), max_batch_size: int = 8) -> Contract:
    """A model m with one input x."""
    x = Tensor(name="x", datatype=datatype, shape=shape)
    return Contract(model="m", max_batch_size=max_batch_size, inputs={"x": x}, outputs={}, config=ModelConfig())


def _sent(datatype: str, value: Any, shape: tuple[int, ...] = (-1, 2)) -> Any:
    """The array that is sent when *value* is given."""
    return checked(_contract(datatype, shape), {"x": value})[1]["x"]


def _numpy(datatype: str) -> np.dtype[Any]:
    return np.dtype(triton_to_np_dtype(datatype))


@pytest.mark.parametrize("given_type", TYPES)
@pytest.mark.parametrize("declared", TYPES)
def test_every_pair_of_types_is_converted_or_refused(given_type: str, declared: str) -> None:
    """Ones are sent in the declared type where a conversion is allowed; otherwise the message says all there is."""
    ones = np.ones((1, 2), _numpy(given_type))
    if declared in ALWAYS[given_type]:
        sent = _sent(declared, ones)
        assert sent.dtype == _numpy(declared)
        assert (sent == 1).all()
        assert (sent is ones) == (given_type == declared)
        return
    name = TYPES[given_type]
    with pytest.raises(InvalidRequest, match=rf"Model m, input x: got {name} \({given_type}\); expected {declared}"):
        _sent(declared, ones)


@pytest.mark.parametrize("declared", [*TYPES, "BYTES"])
@pytest.mark.parametrize("dtype", ["complex64", "M8[s]", "m8[s]", "O", "V4"])
def test_what_triton_has_no_type_for_is_refused(declared: str, dtype: str) -> None:
    """Complex numbers, dates, records and objects that are no text fit nothing."""
    with pytest.raises(InvalidRequest, match=rf"Model m, input x: got .*; expected .*{declared}"):
        _sent(declared, np.zeros((1, 2), dtype))


@pytest.mark.parametrize("declared", TYPES)
def test_text_is_no_number(declared: str) -> None:
    """Digits in a text are not taken for the number."""
    with pytest.raises(InvalidRequest, match=f"Model m, input x: got .*; expected {declared}"):
        _sent(declared, [["1", "2"]])


@pytest.mark.parametrize(
    ("declared", "dtype", "value"),
    [
        ("INT8", "int64", 128),
        ("INT8", "int16", -129),
        ("UINT8", "int8", -1),
        ("UINT64", "int64", -1),
        ("INT64", "uint64", 2**63),
        ("FP16", "int32", 2**11 + 1),
        ("BF16", "int16", 2**8 + 1),
        ("FP32", "int32", 2**24 + 1),
        ("FP64", "int64", 2**53 + 1),
        ("FP64", "int64", -(2**63)),
        ("FP64", "uint64", 2**64 - 1),
    ],
)
def test_integers_that_the_declared_type_does_not_hold_are_refused(declared: str, dtype: str, value: int) -> None:
    """The message names the number that was given and the type that does not hold it."""
    with pytest.raises(InvalidRequest, match=rf"got {value} .{dtype}.; expected what .* holds, .* from .* to "):
        _sent(declared, np.full((1, 2), value, dtype))


@given(
    declared=st.sampled_from(list(TYPES)),
    array=hnp.arrays(
        st.one_of(
            hnp.boolean_dtypes(),
            hnp.integer_dtypes(endianness="?"),
            hnp.unsigned_integer_dtypes(endianness="?"),
            hnp.floating_dtypes(sizes=(16, 32, 64), endianness="?"),
        ),
        st.tuples(st.integers(1, 3), st.just(2)),
    ),
)
@example(declared="FP64", array=np.array([[2**63 - 1, 0]], np.int64))
@example(declared="FP32", array=np.array([[2**24 + 1, -(2**24)]], ">i4"))
@example(declared="BF16", array=np.array([[257, 1]], np.uint16))
def test_an_accepted_conversion_never_changes_a_value(declared: str, array: np.ndarray[Any, Any]) -> None:
    """Whatever is sent equals what was given, number by number in unlimited precision, NaN for NaN; or is refused."""
    try:
        sent = _sent(declared, array)
    except InvalidRequest:
        return
    assert sent.dtype == _numpy(declared)
    assert sent.shape == array.shape
    for before, after in zip(array.flat, sent.flat, strict=True):
        assert _exact(before) == _exact(after) or (before != before and after != after)  # noqa: PLR0124 - NaN


def _exact(number: Any) -> int | float:
    """The number as Python has it, which compares integers and floats exactly."""
    return int(number) if np.issubdtype(np.asarray(number).dtype, np.integer) else float(number)


@given(
    declared=st.sampled_from(["INT8", "INT64", "UINT8", "FP16", "BF16", "FP32", "FP64"]),
    rows=st.lists(st.lists(st.integers(-(2**70), 2**70), min_size=2, max_size=2), min_size=1, max_size=3),
)
def test_literal_integers_arrive_as_they_are_written(declared: str, rows: list[list[int]]) -> None:
    """Python's integers of any size are sent exactly, or refused."""
    try:
        sent = _sent(declared, rows)
    except InvalidRequest:
        return
    assert [[_exact(each) for each in row] for row in sent] == rows


@pytest.mark.parametrize(
    ("declared", "literal"),
    [
        ("FP32", [[1.5, 2]]),
        ("FP16", [[0.1, 0.2]]),
        ("BF16", [(0.1, 0.2)]),
        ("FP64", [[1, 2]]),
        ("UINT8", [[0, 255]]),
        ("BOOL", [[True, False]]),
        ("FP32", [[float("inf"), float("nan")]]),
    ],
)
def test_lists_are_literals_of_the_declared_type(declared: str, literal: list[Any]) -> None:
    """Numbers that are written down take the declared type, floats also a narrower one."""
    sent = _sent(declared, literal)
    assert sent.dtype == _numpy(declared)
    np.testing.assert_array_equal(sent, np.array(literal).astype(_numpy(declared)))


@pytest.mark.parametrize("declared", ["FP16", "BF16", "FP32"])
def test_a_literal_too_large_for_its_type_is_refused(declared: str) -> None:
    """A finite number does not become infinity on its way."""
    with pytest.raises(InvalidRequest, match=r"Model m, input x: got 1e.300; expected what .*float.* holds"):
        _sent(declared, [[1e300, 1.0]])


@pytest.mark.parametrize(
    ("declared", "literal", "says"),
    [
        ("FP32", [[1.0, 2.0], [3.0]], "the lists have different lengths"),
        ("BYTES", [["a", "b"], ["c"]], "got list .*; expected text"),
        ("BYTES", [["a", 7]], r"got int 7 at \[0, 1\]; expected text"),
        ("BYTES", [["a", None]], r"got NoneType None at \[0, 1\]; expected text"),
        ("BYTES", np.ones((1, 2), np.float32), "got float32; expected text"),
        ("INT64", np.ones((1, 2)), r"got float64 .FP64.; expected INT64"),
        ("INT64", [[1.0, 2.5]], r"got float64 .FP64. with 2.5; expected whole numbers that int64 holds"),
        ("INT64", [[1.0, float("nan")]], r"got float64 .FP64. with nan; expected whole numbers"),
        ("INT64", [[1.0, 2.0**53 + 2]], r"got float64 .FP64. with .*; expected whole numbers"),
        ("UINT8", [[1.0, 256.0]], "got 256 .int64.; expected what uint8 holds, integers from 0 to 255"),
        ("INT64", [[2**70, 1]], r"got object that holds 1180591620717411303424 at \[0, 0\]; expected INT64"),
        ("FP32", [[None, 1.0]], r"got object that holds None at \[0, 0\]; expected FP32"),
        ("FP32", [[1.0, "2"]], "expected FP32"),
        ("FP32", np.array([[1.0, NotImplemented]], object), r"holds NotImplemented at \[0, 1\]; expected FP32"),
        ("FP32", np.ma.masked_equal([[1.0, 2.0]], 2.0), r"has masked values; fill them with .filled\(value\)"),
        ("FP32", torch.ones(1, 2, requires_grad=True), r"got Tensor, which cannot be read .*\.detach\(\)"),
        ("BF16", torch.ones(1, 2, dtype=torch.bfloat16), r"got Tensor, which cannot be read .*\.float\(\)"),
        ("FP32", torch.ones(1, 2, device="meta"), "got Tensor, which cannot be read"),
        ("FP32", torch.ones(1, 2).to_sparse(), "got Tensor, which cannot be read"),
        ("FP32", None, "expected FP32"),
        ("FP32", object(), "expected FP32"),
        ("FP32", 1.0, r"got shape \(\); expected \(-1, 2\)"),
        ("FP32", [], r"got shape \(0,\); expected \(-1, 2\)"),
        ("INT64", [], r"got shape \(0,\); expected \(-1, 2\)"),
        ("FP32", np.float32(1.0), r"got shape \(\); expected \(-1, 2\)"),
        ("FP32", np.ones(2, np.float32), "The batch axis is missing; add_batch_axis=True adds it"),
        ("FP32", np.ones((0, 2), np.float32), "got a batch of 0; expected 1 to 8"),
        ("FP32", np.ones((9, 2), np.float32), "got a batch of 9; expected 1 to 8 .*infer_many splits more"),
        ("FP32", np.ones((1, 3), np.float32), r"got shape \(1, 3\); expected \(-1, 2\)"),
    ],
)
def test_what_cannot_be_right_is_refused_with_a_sentence(declared: str, literal: Any, says: str) -> None:
    """Ragged lists, foreign objects, missing axes and wrong sizes each get a message that says what to do."""
    with pytest.raises(InvalidRequest, match=rf"Model m.*{says}"):
        _sent(declared, literal)


def test_an_array_of_another_library_is_no_literal() -> None:
    """What has a dtype of its own is held to it: its floats are not narrowed as those of a list are."""

    class Foreign:
        """Stands for a tensor of PyTorch or JAX."""

        dtype = "float64"

        def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:  # noqa: FBT001 - NumPy's protocol
            return np.ones((1, 2), np.float64)

    with pytest.raises(InvalidRequest, match=r"got float64 .FP64.; expected FP32"):
        _sent("FP32", Foreign())
    assert _sent("FP64", Foreign()).tolist() == [[1, 1]]


@pytest.mark.parametrize("inputs", [np.ones((1, 2), np.float32), [[1.0, 2.0]], None, "x", 3])
def test_inputs_without_names_are_refused(inputs: Any) -> None:
    """An array in place of a mapping is the user's mistake, said as such."""
    with pytest.raises(InvalidRequest, match=r"Model m: got .* as inputs; expected a mapping of names to arrays"):
        checked(_contract("FP32"), inputs)


def test_a_table_is_no_mapping_but_can_be_made_one() -> None:
    """A DataFrame in place of the inputs gets a sentence that shows how to name its array."""

    class DataFrame:
        """Stands for that of pandas or polars."""

        def to_numpy(self) -> Any:
            return np.ones((1, 2), np.float32)

    frame: Any = DataFrame()
    with pytest.raises(InvalidRequest, match=r"got DataFrame as inputs.*as {'x': df.to_numpy\('float32'\)}"):
        checked(_contract("FP32"), frame)


def test_whole_numbers_as_json_has_them_are_integers() -> None:
    """1.0 in a list is 1 for an integer input, a bool is 0 or 1, and a mask that hides nothing does no harm."""
    assert _sent("INT64", [[1.0, -2.0]]).tolist() == [[1, -2]]
    assert _sent("INT64", [[1.0, -2.0]]).dtype == np.int64
    assert _sent("FP32", [[True, False]]).tolist() == [[1.0, 0.0]]
    assert _sent("FP32", np.ma.masked_array(np.ones((1, 2), np.float32))).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("item", "says"),
    [
        (np.ones(3, np.float32), r"got shape \(3,\); expected \(2,\)\.$"),
        (np.float32(1), r"got shape \(\); expected \(2,\)\.$"),
        (np.ones(2), "got float64"),
    ],
)
def test_an_item_is_compared_without_the_batch_axis(item: Any, says: str) -> None:
    """An item's message has its number and shapes of items, not of batches."""
    with pytest.raises(InvalidRequest, match=f"^Item 7: Model m, input x: {says}"):
        checked_item(_contract("FP32"), {"x": item}, 7)


def _two_inputs() -> Contract:
    """A model m with the inputs a and b, b optional."""
    tensors = {name: Tensor(name=name, datatype="FP32", shape=(-1, 2), optional=name == "b") for name in "ab"}
    return Contract(model="m", max_batch_size=8, inputs=tensors, outputs={}, config=ModelConfig())


@pytest.mark.parametrize(
    ("names", "says"),
    [
        ("", "got the inputs none; expected a, b .optional."),
        ("b", "got the inputs b; expected a, b .optional."),
        ("abc", "got the inputs a, b, c; expected a, b .optional."),
        ("c", "got the inputs c; expected a"),
    ],
)
def test_names_that_are_missing_or_too_many_are_refused(names: str, says: str) -> None:
    """The message lists what was given and what the model declares."""
    with pytest.raises(InvalidRequest, match=f"Model m {says}"):
        checked(_two_inputs(), {name: np.ones((1, 2), np.float32) for name in names})


def test_a_name_that_is_no_text_is_refused() -> None:
    """Numbers as names get the same sentence, though they do not sort beside texts."""
    x = np.ones((1, 2), np.float32)
    with pytest.raises(InvalidRequest, match="got the inputs 0, a; expected a"):
        checked(_two_inputs(), {"a": x, 0: x})  # type: ignore[dict-item]


def test_inputs_of_different_numbers_of_rows_are_refused() -> None:
    """All inputs of one request have the same batch."""
    inputs = {"a": np.ones((2, 2), np.float32), "b": np.ones((3, 2), np.float32)}
    with pytest.raises(InvalidRequest, match=r"different numbers of rows .*'a': 2, 'b': 3"):
        checked(_two_inputs(), inputs)
    assert checked(_two_inputs(), {"a": inputs["a"]})[0] == 2


@pytest.fixture(params=["http", "grpc"])
def live(request: pytest.FixtureRequest, client_server: EmbeddedServer) -> Iterator[Client]:
    """A client of the real server, once per transport."""
    protocol: Protocol = request.param
    url = client_server.grpc_url if protocol == "grpc" else client_server.http_url
    with Client(url, protocol=protocol) as connected:
        yield connected


@pytest.mark.triton
@pytest.mark.parametrize("size", [3, 9000])
def test_arrays_of_any_memory_layout_arrive_as_they_read(live: Client, size: int) -> None:
    """Views, transposed, Fortran, read-only, broadcast, big-endian and masked arrays, small and large, twice each."""
    base = np.arange(16 * size, dtype=np.float32).reshape(8, 2 * size) % 97
    frozen = base[:2, :size].copy()
    frozen.flags.writeable = False
    layouts = [
        base[::2, ::2],
        base[::-1, ::-1],
        np.asfortranarray(base),
        base.T[:8].copy().T[:8],
        frozen,
        np.broadcast_to(np.float32(3), (4, size)),
        base.astype(">f4"),
        base.astype(np.int16),
        base.astype(np.float16),
        np.ma.masked_array(base),
        np.lib.stride_tricks.sliding_window_view(base[0], size)[:5],
    ]
    for array in layouts:
        expected = np.asarray(array, np.float32).sum(axis=1, keepdims=True)
        for _ in range(2):  # the second time by what was kept of the first
            np.testing.assert_allclose(live.infer("free", {"x": array})["y"], expected, rtol=1e-5)


@pytest.mark.triton
def test_odd_inputs_fare_live_as_the_table_says(live: Client) -> None:
    """Lists, whole numbers and booleans arrive as numbers; 0-d and empty ones never leave."""
    assert live.infer("free", {"x": [[1, 2.5], [3, 4]]})["y"].tolist() == [[3.5], [7]]
    assert live.infer("free", {"x": np.array([[True, True]])})["y"].tolist() == [[2]]
    assert live.infer("bfloat", {"x": [[0.5]]})["y"].tolist() == [[ml_dtypes.bfloat16(0.5)]]
    for wrong in (np.float32(1), np.empty((0, 1), np.float32), [[1.0], [1.0, 2.0]], [[1e300]]):
        with pytest.raises(InvalidRequest, match="Model free"):
            live.infer("free", {"x": wrong})
