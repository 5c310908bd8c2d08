"""Every built-in architecture, exported, answers through the real server what torch answers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pytest
import torch
from onnx import TensorProto, helper, save

from tritonbatch.client import Client
from tritonbatch.client.client import Protocol
from tritonbatch.export.build import build_from_file
from tritonbatch.models import decoder_step, minilm
from tritonbatch.models.catalog import BUILT_IN, load_model
from tritonbatch.models.model import Model
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.layout import write_variants
from tritonbatch.repository.variants import DynamicBatching, standard_variants
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

Outputs = Mapping[str, npt.NDArray[Any]]
LARGEST_ABSOLUTE = 1e-4


def _expected(model: Model, rows: Outputs) -> dict[str, npt.NDArray[Any]]:
    with torch.no_grad():
        result = model.module(*(torch.from_numpy(np.array(rows[spec.name])) for spec in model.inputs))
    tensors = [result] if isinstance(result, torch.Tensor) else list(result)
    return {spec.name: tensor.numpy() for spec, tensor in zip(model.outputs, tensors, strict=True)}


def _largest_difference(got: Outputs, expected: Outputs) -> float:
    assert got.keys() == expected.keys()
    assert all(got[name].shape == expected[name].shape for name in expected)
    return max(float(np.abs(got[name] - expected[name]).max()) for name in expected)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_served_model_answers_as_torch_does(name: str, catalogue_server: EmbeddedServer) -> None:
    """Requests of one row, several rows and the largest batch get torch's results within 1e-4."""
    model = load_model(name)
    with Client(catalogue_server.grpc_url, protocol="grpc") as client:
        for batch in (1, 5, 16):
            rows = model.sample(batch, np.random.default_rng([5, batch]))
            assert _largest_difference(client.infer(name, rows), _expected(model, rows)) < LARGEST_ABSOLUTE


@pytest.mark.parametrize("name", ["convnet", "decoder_step", "digits"])
def test_requests_that_were_joined_get_their_own_rows_back(name: str, catalogue_server: EmbeddedServer) -> None:
    """Forty requests at once are executed in fewer batches, and each caller gets torch's result for its row."""
    model = load_model(name)
    # 33 to 64 rows have one length of cache, so that steps can be joined.
    rows = model.sample(40, np.random.default_rng(6))
    expected = _expected(model, rows)
    with Client(catalogue_server.grpc_url, protocol="grpc") as client:
        before = client.settled_statistics(name)
        answers = _at_once(catalogue_server, name, [{k: v[i : i + 1] for k, v in rows.items()} for i in range(40)])
        after = client.settled_statistics(name)
    for i, answer in enumerate(answers):
        assert _largest_difference(answer, {k: v[i : i + 1] for k, v in expected.items()}) < LARGEST_ABSOLUTE
    assert after.inference_count - before.inference_count == 40
    assert after.execution_count - before.execution_count < 40


@pytest.mark.parametrize(("lengths", "executions"), [((16, 16), 1), ((16, 32), 2), ((8, 16, 8, 16), 4)])
def test_only_requests_of_equal_length_are_batched(
    lengths: tuple[int, ...], executions: int, catalogue_server: EmbeddedServer
) -> None:
    """Two requests of 16 tokens are one execution; of 16 and 32 tokens two; alternating lengths are never joined."""
    sentences = ["track my parcel", "opening hours", "why is the sky blue", "cheap flights to Lisbon"]
    requests = [minilm.encode([text], tokens) for text, tokens in zip(sentences, lengths, strict=False)]
    with Client(catalogue_server.grpc_url, protocol="grpc") as client:
        before = client.settled_statistics("minilm_dynamic")
        # In this order: the batcher never passes over a request to find one that fits.
        answers = _at_once(catalogue_server, "minilm_dynamic", requests, apart_s=0.03)
        after = client.settled_statistics("minilm_dynamic")
    assert after.execution_count - before.execution_count == executions
    model = load_model("minilm_dynamic")
    for answer, rows in zip(answers, requests, strict=True):
        assert _largest_difference(answer, _expected(model, rows)) < LARGEST_ABSOLUTE


def test_a_conversation_through_the_server_equals_one_forward_over_its_text(catalogue_server: EmbeddedServer) -> None:
    """Six steps that hand the cache back and forth, from an empty one on, give the logits of the whole text."""
    module = load_model("decoder_step").module
    tokens = np.random.default_rng(8).integers(decoder_step.VOCABULARY, size=(4, 6))
    nothing = decoder_step.empty_cache(4)
    past = nothing
    with Client(catalogue_server.grpc_url, protocol="grpc") as client:
        for step in range(6):
            answer = client.infer("decoder_step", {"token_ids": tokens[:, step : step + 1], **past})
            past = {"past_keys": answer["present_keys"], "past_values": answer["present_values"]}
            assert past["past_keys"].shape == (4, 2, 4, step + 1, 16)
            with torch.no_grad():
                whole, *_ = module(*map(torch.from_numpy, (tokens[:, : step + 1], *nothing.values())))
            assert np.abs(answer["logits"] - whole.numpy()).max() < LARGEST_ABSOLUTE


def _at_once(
    server: EmbeddedServer, name: str, requests: Sequence[Outputs], apart_s: float = 0.0
) -> list[dict[str, npt.NDArray[Any]]]:
    """Send *requests* from a thread each, *apart_s* after one another, and return the answers in order."""

    def send(index: int) -> dict[str, npt.NDArray[Any]]:
        with Client(server.grpc_url, protocol="grpc") as client:
            request = client.request(name, requests[index])
            time.sleep(max(0.0, start + index * apart_s - time.monotonic()))
            result = client.send(request)
        return {spec.name: result.as_numpy(spec.name) for spec in outputs}

    with Client(server.grpc_url, protocol="grpc") as client:
        outputs = client.metadata(name).outputs
    start = time.monotonic() + 1.0
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(send, range(len(requests))))


NAMES = ("yolonms_layer_1/ExpandDims_1:0", "input.1", "508", "INPUT__0")


def _write_odd_names(path: Path) -> None:
    first, second, total, copied = NAMES
    graph = helper.make_graph(
        [helper.make_node("Add", [first, second], [total]), helper.make_node("Identity", [first], [copied])],
        "names",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in (first, second)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 3]) for name in (total, copied)],
    )
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


def test_odd_names_survive_from_the_file_to_a_request(tmp_path: Path) -> None:
    """Slashes, colons, dots and digits stand in the configuration and in requests exactly as in the graph."""
    _write_odd_names(tmp_path / "names.onnx")
    repository = tmp_path / "repository"
    built = build_from_file(tmp_path / "names.onnx", repository / "names", max_batch_size=4)
    stem = onnx_config("names", built.inputs, built.outputs, max_batch_size=4, instances=Instances())
    write_variants(repository / "names", standard_variants(stem, 2, DynamicBatching()))
    with EmbeddedServer(repository, config_name="dynamic") as server:
        for protocol, url in (("http", server.http_url), ("grpc", server.grpc_url)):
            with Client(url, protocol=cast("Protocol", protocol)) as client:
                _check_odd_names(client)


def _check_odd_names(client: Client) -> None:
    first, second = (np.full((2, 3), value, np.float32) for value in (1, 10))
    config = client.config("names")
    assert [tensor.name for tensor in (*config.input, *config.output)] == list(NAMES)
    answer = client.infer("names", {NAMES[0]: first, NAMES[1]: second})
    np.testing.assert_array_equal(answer["508"], first + second)
    np.testing.assert_array_equal(answer["INPUT__0"], first)
