"""What is kept between requests never shows: requests and answers are those of tritonclient, however often."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from tritonclient.grpc import InferInput as GrpcInput
from tritonclient.grpc import InferRequestedOutput, InferResult
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc._utils import _get_inference_request
from tritonclient.http import InferenceServerClient, InferInput
from tritonclient.utils import np_to_triton_dtype

from tritonbatch.client.grpc_language import GrpcLanguage
from tritonbatch.client.http_language import HttpLanguage
from tritonbatch.client.message import Reply
from tritonbatch.client.options import Options

SHAPES = st.sampled_from([(1, 4), (3, 2), (1, 0), (2, 300)])
DTYPES = st.sampled_from([np.float32, np.int64, np.uint8, np.float16])
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=8)
BYTES = st.binary(max_size=12)


@st.composite
def arrays(draw: st.DrawFn) -> dict[str, np.ndarray]:
    """One to three inputs of numbers or text."""
    found: dict[str, np.ndarray] = {}
    for name in draw(st.lists(NAMES, min_size=1, max_size=3, unique=True)):
        if draw(st.booleans()):
            shape = draw(SHAPES)
            size = int(np.prod(shape))
            found[name] = np.arange(size).reshape(shape).astype(draw(DTYPES))
        else:
            found[name] = np.array(draw(st.lists(BYTES, min_size=1, max_size=3)), dtype=np.object_)[:, None]
    return found


@given(arrays(), st.integers(0, 5), st.text(max_size=5), st.none() | st.integers(1, 2**40))
@settings(max_examples=150, deadline=None)
def test_a_grpc_request_says_what_tritonclient_says(
    inputs: dict[str, np.ndarray], priority: int, request_id: str, timeout_us: int | None
) -> None:
    """Joined from kept parts, the message is equal to the one that tritonclient builds, field by field."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(GrpcInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    expected = _get_inference_request(
        model_name="m",
        inputs=tensors,
        model_version="3",
        request_id=request_id,
        outputs=[InferRequestedOutput("y")],
        sequence_id=0,
        sequence_start=False,
        sequence_end=False,
        priority=priority,
        timeout=timeout_us,
        parameters=None,
    )
    language = GrpcLanguage()
    options = Options(version="3", priority=priority, outputs=("y",))
    write = language.bind(language.writer(inputs, "m", options), tuple(inputs.values()), keep=True)
    body = b"".join(write(timeout_us, request_id, {}).body)
    assert pb.ModelInferRequest.FromString(body) == expected


@given(arrays(), st.integers(0, 5), st.text(max_size=5), st.none() | st.integers(1, 2**40))
@settings(max_examples=150, deadline=None)
def test_an_http_request_says_what_tritonclient_says(
    inputs: dict[str, np.ndarray], priority: int, request_id: str, timeout_us: int | None
) -> None:
    """The JSON with its kept parts equals tritonclient's, and the data follow it unchanged."""
    tensors = []
    for name, array in inputs.items():
        tensors.append(InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)))
        tensors[-1].set_data_from_numpy(array)
    expected, length = InferenceServerClient.generate_request_body(
        tensors, request_id=request_id, priority=priority, timeout=timeout_us
    )
    language = HttpLanguage()
    write = language.bind(language.writer(inputs, "m", Options(priority=priority)), tuple(inputs.values()), keep=True)
    call = write(timeout_us, request_id, {})
    assert call.target == "/v2/models/m/infer"
    body, own = b"".join(call.body), int(call.headers["Inference-Header-Content-Length"])
    assert body[own:] == bytes(expected[length:])
    got, wanted = json.loads(body[:own]), json.loads(bytes(expected[:length]))
    if timeout_us is None:  # a kept JSON with an id has the timeout 0, which is none
        assert got.get("parameters", {}).pop("timeout", 0) == 0
    if not got.get("id"):
        got.pop("id", None)
    assert got == wanted


@st.composite
def answers(draw: st.DrawFn) -> pb.ModelInferResponse:
    """An answer of one or two outputs, sometimes with an id, parameters, or an output in shared memory."""
    message = pb.ModelInferResponse(
        model_name=draw(st.sampled_from(["m", "n"])), model_version="1", id=draw(st.sampled_from(["", "", "a", "b"]))
    )
    if draw(st.booleans()):
        message.parameters["k"].int64_param = draw(st.integers(0, 2))
    for name in ("y", "z")[: draw(st.integers(1, 2))]:
        rows = draw(st.integers(0, 40))
        output = message.outputs.add(name=name, datatype="INT32", shape=[rows, 1])
        if draw(st.integers(0, 4)) == 0:
            output.parameters["shared_memory_region"].string_param = "r"
        else:
            data = np.array(draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows)), np.int32)
            message.raw_output_contents.append(data.tobytes())
    return message


@given(st.lists(answers(), min_size=1, max_size=12))
@settings(max_examples=200, deadline=None)
def test_a_kept_layout_never_changes_an_answer(messages: list[pb.ModelInferResponse]) -> None:
    """In any sequence of answers each one is understood as tritonclient understands it alone."""
    language = GrpcLanguage()
    for message in messages * 2:
        answer = language.answer(Reply(message.SerializeToString(deterministic=True)))
        assert (answer.model, answer.version, answer.request_id) == (message.model_name, "1", message.id)
        assert answer.parameters == {key: value.int64_param for key, value in message.parameters.items()}
        inline = [each.name for each in message.outputs if "shared_memory_region" not in each.parameters]
        got = answer.arrays()
        assert list(got) == inline
        contents = iter(message.raw_output_contents)
        for each in message.outputs:
            if each.name in inline:
                np.testing.assert_array_equal(
                    got[each.name], np.frombuffer(next(contents), np.int32).reshape(list(each.shape))
                )


def test_an_answer_of_the_same_length_but_another_layout_is_parsed_anew() -> None:
    """Bytes move between two outputs, the whole stays as long: each output still has its own."""
    language = GrpcLanguage()
    for sizes in ((1, 3), (3, 1), (1, 3)):
        message = pb.ModelInferResponse(model_name="m")
        for name, size in zip("yz", sizes, strict=True):
            message.outputs.add(name=name, datatype="UINT8", shape=[size])
            message.raw_output_contents.append(bytes(range(size)))
        result: Any = InferResult(message)
        answer = language.answer(Reply(message.SerializeToString()))
        for name in "yz":
            np.testing.assert_array_equal(answer.arrays()[name], result.as_numpy(name))


@pytest.mark.parametrize("body", [b"\xff\xff\xff", b"\x32\xff\xff\xff\xff\x0f"])
def test_bytes_that_are_no_answer_are_not_kept(body: bytes) -> None:
    """Malformed bytes raise each time, and leave nothing behind."""
    language = GrpcLanguage()
    for _ in range(2):
        with pytest.raises(DecodeError):
            language.answer(Reply(body))
    assert not language._layouts
