"""The client against the real server, over both transports: right answers, and errors that say what to do."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import grpc
import numpy as np
import pytest
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from tritonbatch.client import Client, InvalidRequest, Overloaded, Protocol, ServerError, TimedOut, Unreachable
from tritonbatch.client.errors import mapped_errors
from tritonbatch.client.tensors import random_inputs
from tritonbatch.errors import InvalidInput, RequestFailed
from tritonbatch.server import EmbeddedServer

WEIGHTS = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(params=["http", "grpc"])
def client(request: pytest.FixtureRequest, server: EmbeddedServer) -> Iterator[Client]:
    """A client of the shared server, once per transport."""
    protocol: Protocol = request.param
    with Client(server.grpc_url if protocol == "grpc" else server.http_url, protocol=protocol) as connected:
        yield connected


@pytest.mark.triton
def test_answers_are_right_for_every_batch_size(client: Client) -> None:
    """Every batch from 1 to the maximum gives x @ W, row by row."""
    for rows in range(1, 9):
        x = np.random.default_rng(rows).random((rows, 4), np.float32)
        np.testing.assert_allclose(client.infer("linear", {"x": x})["y"], x @ WEIGHTS, rtol=1e-6)


@pytest.mark.triton
def test_every_numeric_type_survives_the_way_there_and_back(client: Client) -> None:
    """What is sent in each of Triton's numeric types comes back bit for bit, through the embedded backend."""
    inputs = random_inputs(client.metadata("echo"), 3, np.random.default_rng(0))
    assert len(inputs) == 12
    outputs = client.infer("echo", inputs)
    for name, array in inputs.items():
        got = outputs[name.replace("in_", "out_")]
        assert got.dtype == array.dtype == triton_to_np_dtype(name.removeprefix("in_"))
        np.testing.assert_array_equal(got, array)


@pytest.mark.triton
def test_a_tensor_with_no_axis_but_the_batch_is_served(client: Client) -> None:
    """A graph of shape [batch] loads, its callers see [batch, 1], and samples of one number per row fit."""
    x = np.arange(5, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(client.infer("scalar", {"x": x})["y"], 2 * x)


@pytest.mark.triton
def test_both_transports_answer_alike(server: EmbeddedServer) -> None:
    """Configuration, metadata and the shape of statistics are the same protobufs over HTTP and gRPC."""
    with Client(server.http_url) as over_http, Client(server.grpc_url, protocol="grpc") as over_grpc:
        assert over_http.config("linear") == over_grpc.config("linear")
        assert over_http.metadata("linear") == over_grpc.metadata("linear")
        assert over_http.statistics("linear") == over_grpc.statistics("linear")
        assert over_http.server_metadata() == over_grpc.server_metadata()
        assert over_http.server_metadata().version == "2.51.0"


@pytest.mark.triton
def test_ready_tells_servers_and_models_apart(client: Client) -> None:
    """Ready is true for the server and its models, and false for a model that is not there."""
    assert client.ready()
    assert client.ready("linear")
    assert not client.ready("ghost")


@pytest.mark.triton
@pytest.mark.parametrize(
    ("inputs", "says"),
    [
        ({}, "linear got the inputs none; expected x"),
        ({"z": np.ones((1, 4), np.float32)}, "got the inputs z; expected x"),
        ({"x": np.ones((1, 4), np.float64)}, "input x: got float64 .FP64.; expected FP32"),
        ({"x": np.ones((1, 4), np.complex64)}, "no Triton type"),
        ({"x": np.ones((1, 5), np.float32)}, r"input x: got shape \(1, 5\); expected \(-1, 4\)"),
        ({"x": np.ones(4, np.float32)}, r"input x: got shape \(4,\)"),
        ({"x": np.ones((0, 4), np.float32)}, "got a batch of 0; expected 1 to 8"),
        ({"x": np.ones((9, 4), np.float32)}, "got a batch of 9; expected 1 to 8"),
    ],
)
def test_wrong_inputs_are_refused_before_they_are_sent(
    server: EmbeddedServer, inputs: dict[str, np.ndarray], says: str
) -> None:
    """The message names model, tensor, got and expected, and the server never sees the request."""
    with Client(server.http_url) as client:
        before = client.statistics("linear")
        with pytest.raises(InvalidRequest, match=says):
            client.infer("linear", inputs)
        assert client.statistics("linear") == before


@pytest.mark.triton
def test_an_unknown_model_is_an_invalid_request(client: Client) -> None:
    """A model that is not there is the caller's mistake, named in the message."""
    with pytest.raises(InvalidRequest, match="ghost"):
        client.infer("ghost", {"x": np.ones((1, 4), np.float32)})


@pytest.mark.triton
def test_a_failure_inside_the_model_is_a_server_error(client: Client) -> None:
    """An index that ONNX Runtime rejects comes back as ServerError with its words, and the server lives on."""
    with pytest.raises(ServerError, match="out of data bounds"):
        client.infer("gather", {"index": np.array([[99]], np.int64)})
    assert client.infer("gather", {"index": np.array([[7]], np.int64)})["value"].item() == 7.0


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_where_nothing_listens_the_address_is_named(protocol: Protocol) -> None:
    """A refused connection is Unreachable over both transports, and ready() is just False."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        url = f"localhost:{holder.getsockname()[1]}"
    with Client(url, protocol=protocol) as client:
        assert not client.ready()
        with pytest.raises(Unreachable, match=url):
            client.metadata("linear")


@pytest.mark.parametrize(
    ("url", "protocol"),
    [
        ("http://localhost:1", "grpc"),
        ("https://localhost:1", "http"),
        ("localhost", "http"),
        (":8000", "http"),
        ("localhost:", "grpc"),
        ("localhost:http", "http"),
        ("localhost:0", "http"),
        ("localhost:99999", "http"),
        ("a:1", "ftp"),
    ],
)
def test_an_address_that_is_none_is_refused(url: str, protocol: Protocol) -> None:
    """Schemes, missing ports and unknown protocols are said at once."""
    with pytest.raises(InvalidInput, match="expected"):
        Client(url, protocol=protocol)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (InferenceServerException("[request id: 1] Exceeds maximum queue size", "503"), Overloaded),
        (InferenceServerException("Exceeds maximum queue size", "StatusCode.UNAVAILABLE"), Overloaded),
        (InferenceServerException("failed to connect to all addresses", "StatusCode.UNAVAILABLE"), Unreachable),
        (InferenceServerException("Request timeout expired", "503"), TimedOut),
        (InferenceServerException("Deadline Exceeded", "StatusCode.DEADLINE_EXCEEDED"), TimedOut),
        (InferenceServerException("no such model", "StatusCode.NOT_FOUND"), InvalidRequest),
        (InferenceServerException("bad", "400"), InvalidRequest),
        (InferenceServerException("boom", "500"), ServerError),
        (InferenceServerException("boom", None), ServerError),
        (ConnectionResetError("reset"), Unreachable),
        (BrokenPipeError("pipe"), Unreachable),
        (TimeoutError("slow"), TimedOut),
    ],
)
def test_foreign_errors_become_ours_with_their_cause(error: Exception, kind: type[RequestFailed]) -> None:
    """Each foreign error becomes the kind that says what to do, and stays reachable as its cause."""
    with pytest.raises(kind, match="localhost:8000") as caught, mapped_errors("localhost:8000", "m"):
        raise error
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


def test_every_status_code_of_grpc_is_mapped() -> None:
    """No gRPC status escapes as a foreign exception."""
    for code in grpc.StatusCode:
        with pytest.raises(RequestFailed), mapped_errors("localhost:8001"):
            raise InferenceServerException("message", str(code))
