"""Every method and option of the four clients (blocking and asyncio, HTTP and gRPC) against the real server."""

from __future__ import annotations

import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from google.protobuf.message import Message
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.client import (
    Answer,
    Client,
    Connections,
    Contract,
    InvalidRequest,
    NotReady,
    Options,
    Protocol,
    Request,
    Retry,
    Tensor,
    TimedOut,
)
from tritonbatch.client.contract import contract as contract_of
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

X = np.array([[1.5], [2.5]], np.float32)


@pytest.fixture
def client(connect: Callable[..., Any]) -> Any:
    """One client with its defaults, of each of the four kinds."""
    return connect()


@pytest.fixture
def restored(client_server: EmbeddedServer) -> Iterator[Callable[[str], Client]]:
    """Gives a second client, and afterwards loads the models it was asked for as they were.

    Triton keeps a configuration that came with a load, until another one comes.
    """
    before: list[ModelConfig] = []
    with Client(client_server.grpc_url, protocol="grpc") as other:

        def remembered(name: str) -> Client:
            before.append(other.config(name))
            return other

        yield remembered
        for config in before:
            other.load(config.name, config)


def _until(is_so: Callable[[], bool]) -> bool:
    """Whether *is_so* became true within ten seconds."""
    deadline = time.monotonic() + 10
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_so()


def _failures(server: EmbeddedServer, reason: str) -> float:
    """How many requests of the sleeper failed for *reason*, by the server's metrics."""
    with urllib.request.urlopen(server.metrics_url, timeout=10) as page:  # noqa: S310 - its own server's address
        lines = page.read().decode().splitlines()
    wanted = ("nv_inference_request_failure{", 'model="sleeper"', f'reason="{reason}"')
    return sum(float(line.split()[-1]) for line in lines if all(part in line for part in wanted))


def test_the_server_and_its_models_describe_themselves(client: Any) -> None:
    """Metadata, configuration and readiness are the server's own, as protobufs, for the default and a named version."""
    assert client.ready()
    assert client.ready("half")
    assert client.ready("half", "1")
    assert not client.ready("half", "7")
    assert client.server_metadata().version == "2.51.0"
    for version in ("", "1"):
        metadata, config = client.metadata("half", version), client.config("half", version)
        assert isinstance(config, ModelConfig)
        assert [(each.name, each.datatype, list(each.shape)) for each in metadata.inputs] == [("x", "FP16", [-1, 1])]
        assert (config.name, config.max_batch_size) == ("half", 8)
    with pytest.raises(InvalidRequest, match="version 7"):
        client.metadata("half", "7")


def test_a_contract_says_what_requests_must_look_like(client: Any) -> None:
    """Tensors with their wire shapes, which of them are optional, the batch limit, and what may not be repeated."""
    contract = client.contract("optional")
    assert isinstance(contract, Contract)
    assert contract.inputs["a"] == Tensor(name="a", datatype="FP32", shape=(-1, 2))
    assert contract.inputs["b"] == Tensor(name="b", datatype="FP32", shape=(-1, 2), optional=True)
    assert list(contract.outputs) == ["y"]
    assert (contract.max_batch_size, contract.stateful) == (8, False)
    assert client.contract("nobatch").inputs["x"].shape == (2, 3)
    assert client.contract("sleeper").takes_queue_timeout(0)
    assert not contract.takes_queue_timeout(0)


@pytest.mark.parametrize(
    ("allow", "default_us", "priority", "takes"),
    [(True, 5, 0, False), (True, 5, 2, True), (True, 0, 2, False), (False, 5, 2, False), (True, 5, 1, False)],
)
def test_the_queue_policy_is_that_of_the_priority(*, allow: bool, default_us: int, priority: int, takes: bool) -> None:
    """A policy of level 2 holds for that level alone, and passes a timeout on only where it has one to shorten."""
    config = ModelConfig()
    config.dynamic_batching.priority_levels = 3
    config.dynamic_batching.default_priority_level = 1
    policy = config.dynamic_batching.priority_queue_policy[2]
    policy.allow_timeout_override, policy.default_timeout_microseconds = allow, default_us
    assert contract_of(pb.ModelMetadataResponse(name="m"), config).takes_queue_timeout(priority) == takes


def test_a_contract_is_asked_for_once(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many requests go to a model, its metadata and configuration are fetched one time."""
    asked: list[str] = []
    ask = client._core.language.ask
    monkeypatch.setattr(client._core.language, "ask", lambda what, *rest: asked.append(what) or ask(what, *rest))
    for _ in range(3):
        client.infer("free", {"x": X})
    assert asked == ["metadata", "config"]


def test_statistics_count_the_requests(client: Any) -> None:
    """The settled statistics hold every execution up to now, those of a moment ago may lag behind them."""
    before = client.settled_statistics("free")
    for _ in range(3):
        client.infer("free", {"x": X})
    after = client.settled_statistics("free")
    assert (after.execution_count - before.execution_count, after.inference_count - before.inference_count) == (3, 6)
    assert client.statistics("free") == after == client.statistics("free", "1")


@pytest.mark.parametrize("connect", ["http-async", "grpc"], indirect=True)
def test_a_model_is_unloaded_and_loaded(client: Any) -> None:
    """An unloaded model is not ready, is refused, and answers again after it was loaded."""
    client.unload("optional")
    assert _until(lambda: not client.ready("optional"))
    with pytest.raises((InvalidRequest, NotReady), match="optional"):
        client.infer("optional", {"a": np.ones((1, 2), np.float32)}, timeout_s=1.0)
    client.load("optional")
    assert client.ready("optional")
    assert client.infer("optional", {"a": np.ones((1, 2), np.float32)})["y"].tolist() == [[1, 1]]


@pytest.mark.parametrize("connect", ["http-async"], indirect=True)
def test_loading_with_another_configuration_takes_effect(client: Any, restored: Callable[[str], Client]) -> None:
    """The server takes the given configuration, and the client that loaded it forgets what it knew."""
    restored("half")
    x = np.ones((9, 1), np.float16)
    with pytest.raises(InvalidRequest, match="expected 1 to 8"):
        client.infer("half", {"x": x})
    config = client.config("half")
    config.max_batch_size = 16
    client.load("half", config)
    assert client.config("half").max_batch_size == 16
    assert client.contract("half").max_batch_size == 16
    assert client.infer("half", {"x": x})["y"].shape == (9, 1)


@pytest.mark.parametrize(("connect", "change"), [("http", "batch"), ("grpc-async", "shape")], indirect=["connect"])
def test_a_model_changed_behind_the_clients_back_costs_one_error(
    client: Any, restored: Callable[[str], Client], change: str
) -> None:
    """What another client changed is refused once by the server; from then on this client knows the new model."""
    other = restored("half")
    x = {"x": np.ones((8, 1), np.float16)}
    client.infer("half", x)
    config = other.config("half")
    if change == "batch":
        config.max_batch_size = 4
    else:
        config.input[0].dims[:] = [2]
        config.output[0].dims[:] = [2]
    other.load("half", config)
    with pytest.raises(InvalidRequest, match="the server answered"):
        client.infer("half", x)
    with pytest.raises(InvalidRequest, match="expected 1 to 4" if change == "batch" else r"expected \(-1, 2\)"):
        client.infer("half", x)
    good = np.ones((4, 1 if change == "batch" else 2), np.float16)
    assert client.infer("half", {"x": good})["y"].shape == good.shape


def test_one_item_without_a_batch_axis(client: Any) -> None:
    """With add_batch_axis the item's arrays have no batch axis, and neither have the outputs, in infer alone."""
    item = {"x": np.array([1, 2, 4], np.float32)}
    assert client.infer("free", item, add_batch_axis=True)["y"].tolist() == [7]
    assert client.send(client.request("free", item, add_batch_axis=True)).arrays()["y"].tolist() == [[7]]
    with pytest.raises(InvalidRequest, match="max_batch_size 0"):
        client.infer("nobatch", {"x": np.ones((2, 3), np.float32)}, add_batch_axis=True)


def test_options_reach_the_server(client: Any) -> None:
    """The id comes back, also one that needs quoting; the version is the one asked for; parameters do no harm."""
    options = Options(
        version="1", request_id='order "7" \\ \u00e9', priority=1, parameters={"a": 1, "b": True, "c": "x"}
    )
    answer = client.send(client.request("free", {"x": X}, options=options))
    assert isinstance(answer, Answer)
    assert (answer.model, answer.version, answer.request_id) == ("free", "1", options.request_id)
    assert client.send(client.request("free", {"x": X})).request_id == ""
    with pytest.raises(InvalidRequest, match="version 7"):
        client.infer("free", {"x": X}, options=Options(version="7"))


def test_what_options_ask_for_is_written_as_triton_reads_it(client: Any) -> None:
    """Version, id, priority, outputs and parameters of every type stand in the call that leaves."""
    chosen: dict[str, Any] = {"flag": True, "count": 3, "text": "t", "share": 0.5}
    options = Options(version="1", request_id="id7", priority=2, outputs=("y",), parameters=chosen)
    call = client.request("free", {"x": X}, options=options).write(None, options.request_id, {})
    if client.protocol == "grpc":
        message = pb.ModelInferRequest.FromString(b"".join(call.body))
        assert (message.model_version, message.id, [each.name for each in message.outputs]) == ("1", "id7", ["y"])
        assert message.parameters["priority"].uint64_param == 2
        assert {key: getattr(message.parameters[key], f"{kind}_param") for key, kind in _PARAMETERS} == chosen
    else:
        body = bytes(call.body[0]).decode()
        assert call.target == "/v2/models/free/versions/1/infer"
        for part in ('"id7"', '"priority":2', '"name":"y"', '"flag":true', '"count":3', '"text":"t"', '"share":0.5'):
            assert part in body.replace(": ", ":")


_PARAMETERS = (("flag", "bool"), ("count", "int64"), ("text", "string"), ("share", "double"))


def test_outputs_are_those_asked_for(client: Any) -> None:
    """Asked for by name an output comes; one that the model lacks is refused with the names it has."""
    assert list(client.infer("free", {"x": X}, options=Options(outputs=("y",)))) == ["y"]
    with pytest.raises(InvalidRequest, match="free has no output z; expected of y"):
        client.infer("free", {"x": X}, options=Options(outputs=("z",)))


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_subset_of_the_outputs(server: EmbeddedServer, protocol: Protocol) -> None:
    """Of a model with twelve outputs only the two asked for come back."""
    url = server.grpc_url if protocol == "grpc" else server.http_url
    with Client(url, protocol=protocol) as client:
        known = client.contract("echo")
        inputs = {name: np.zeros((1, 3), _dtype(tensor.datatype)) for name, tensor in known.inputs.items()}
        got = client.infer("echo", inputs, options=Options(outputs=("out_FP32", "out_INT8")))
        assert set(got) == {"out_FP32", "out_INT8"}


def _dtype(datatype: str) -> str:
    short = {"FP16": "float16", "FP32": "float32", "FP64": "float64"}
    return short.get(datatype, datatype.lower())


def test_a_request_is_sent_as_it_was_when_it_was_made(client: Any) -> None:
    """Sent any number of times a request gives the same answer, whatever happened to its arrays since, also large."""
    for size in (3, 50_000):
        x = np.ones((2, size), np.float32)
        request = client.request("free", {"x": x})
        assert isinstance(request, Request)
        assert (request.model, request.rows, request.repeatable) == ("free", 2, True)
        x[:] = -1
        for _ in range(3):
            assert client.send(request).arrays()["y"].tolist() == [[size], [size]]


def test_an_answer_is_decoded_when_asked(client: Any) -> None:
    """arrays() has all outputs, as_numpy one of them, and None for a name that the answer lacks."""
    answer = client.send(client.request("free", {"x": X}))
    assert answer.arrays()["y"].tolist() == [[1.5], [2.5]]
    assert answer.as_numpy("y").tolist() == [[1.5], [2.5]]
    assert answer.as_numpy("z") is None


def test_text_goes_there_and_back(client: Any) -> None:
    """str, bytes, empty, long and non-ASCII texts come back as the bytes of their UTF-8, from lists and arrays."""
    texts = ["", "plain", "\u00fcber \u6771", "x" * 70_000]
    expected = [[text.encode()] for text in texts]
    for given in ([[text] for text in texts], np.array([[text] for text in texts[:3]]), np.array(expected, object)):
        assert client.infer("text", {"x": given})["x"].tolist() == expected[: len(given)]
    assert client.infer("text", {"x": np.array([[b"a\x00b"]], object)})["x"].tolist() == [[b"a\x00b"]]


def test_half_and_brain_floats(client: Any) -> None:
    """FP16 and BF16 (of ml_dtypes) come back bit for bit."""
    for model, dtype in (("half", np.float16), ("bfloat", ml_dtypes.bfloat16)):
        x = np.array([[0.1], [-2.5], [np.inf]], dtype)
        got = client.infer(model, {"x": x})["y"]
        assert got.dtype == x.dtype
        assert got.tobytes() == x.tobytes()


def test_optional_inputs_may_be_left_out(client: Any) -> None:
    """With the optional input it is added, without it is not; the required one must be there."""
    a, b = np.ones((3, 2), np.float32), np.full((3, 2), 2, np.float32)
    assert client.infer("optional", {"a": a, "b": b})["y"].tolist() == [[3, 3]] * 3
    assert client.infer("optional", {"a": a})["y"].tolist() == [[1, 1]] * 3
    with pytest.raises(InvalidRequest, match=r"got the inputs b; expected a, b \(optional\)"):
        client.infer("optional", {"b": b})


def test_a_model_without_a_batch_axis(client: Any) -> None:
    """With max_batch_size 0 the shapes are the model's own, and a request counts as one row."""
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert client.infer("nobatch", {"x": x})["y"].tolist() == x.tolist()
    assert client.request("nobatch", {"x": x}).rows == 1


def test_free_axes_take_any_size(client: Any) -> None:
    """One client sends many shapes to one model, in turn, and each gets its own answer."""
    for size in (1, 5, 300, 5, 1):
        x = np.full((2, size), 2, np.float32)
        assert client.infer("free", {"x": x})["y"].tolist() == [[2 * size]] * 2


def test_what_is_left_of_the_deadline_goes_with_the_request(
    client: Any, client_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the queue policy allows it the rest of the deadline is passed in microseconds, otherwise nothing."""
    passed: list[int | None] = []
    for model in ("sleeper", "free"):
        request = client.request(model, {"x": np.zeros((1, 1), np.float32)})
        assert request.takes_queue_timeout == (model == "sleeper")
        spied = Request(
            request.model,
            request.rows,
            request.options,
            partial(_noted, passed, request.write),
            takes_queue_timeout=request.takes_queue_timeout,
        )
        client.send(spied, timeout_s=4.0)
    assert passed[0] is not None
    assert 0 < passed[0] <= 4_000_000
    assert passed[1] is None


def _noted(passed: list[int | None], write: Any, timeout_us: int | None, *rest: Any) -> Any:
    """Note the timeout, then write the call."""
    passed.append(timeout_us)
    return write(timeout_us, *rest)


@pytest.mark.parametrize("connect", ["http", "grpc-async"], indirect=True)
def test_the_queue_drops_a_request_whose_time_has_passed(client: Any, client_server: EmbeddedServer) -> None:
    """A request that waits behind a longer one is rejected by the server itself, which counts it, and is TimedOut."""
    before = _failures(client_server, "REJECTED")
    request = client.request("sleeper", {"x": np.zeros((1, 1), np.float32)})
    hasty = Request(
        request.model, 1, request.options, lambda _, *rest: request.write(50_000, *rest), takes_queue_timeout=True
    )
    with Client(client_server.http_url) as other:
        started = other.statistics("sleeper").inference_stats.success.count
        busy = threading.Thread(target=other.infer, args=("sleeper", {"x": np.array([[0.4]], np.float32)}))
        busy.start()
        time.sleep(0.1)
        with pytest.raises(TimedOut, match="Request timeout expired"):
            client.send(hasty, timeout_s=20.0)
        busy.join(20)
        assert _until(lambda: other.statistics("sleeper").inference_stats.success.count == started + 1)
    assert _until(lambda: _failures(client_server, "REJECTED") == before + 1)


def test_requests_of_a_stateful_model_are_not_repeatable(client: Any) -> None:
    """With sequence batching a second copy would change the state, so nothing is sent twice."""
    config = ModelConfig()
    config.CopyFrom(client.config("free"))
    config.sequence_batching.max_sequence_idle_microseconds = 1_000_000
    stateful = contract_of(client.metadata("free"), config)
    assert stateful.stateful
    client._core._contracts["free", ""] = stateful
    assert not client.request("free", {"x": X}).repeatable


def test_headers_of_the_connection_do_no_harm(connect: Callable[..., Any]) -> None:
    """Headers for a proxy go with every request, and retries may be turned off altogether."""
    client = connect(connections=Connections(limit=1, headers={"X-Team": "vision"}), retry=None, timeout_s=20.0)
    assert client.ready()
    assert client.infer("free", {"x": X})["y"].tolist() == [[1.5], [2.5]]
    hedged = connect(retry=Retry(hedge_after_s=10.0))
    assert hedged.infer("free", {"x": X})["y"].tolist() == [[1.5], [2.5]]


def test_protobufs_are_what_the_server_sends(client: Any) -> None:
    """Every description is a protobuf of tritonclient's, over both protocols."""
    found = [client.server_metadata(), client.metadata("free"), client.config("free"), client.statistics("free")]
    assert all(isinstance(each, Message) for each in found)


def test_names_with_slashes_and_colons(client: Any) -> None:
    """Model and tensor names with characters that mean something in an address work as any other."""
    x = {"in/ids:0": np.array([[1, 2]], np.int64)}
    assert client.ready("team:names")
    assert client.infer("team:names", x)["out/values:0"].tolist() == [[2, 4]]
    assert client.infer("team:names", x, options=Options(version="1"))["out/values:0"].tolist() == [[2, 4]]
    assert client.statistics("team:names").inference_count > 0
