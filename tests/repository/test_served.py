"""The real Triton loads every variant and does what it says: order, limits, cache, warm-up, steps, versions."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper, numpy_helper
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.client import Client, Overloaded
from tritonbatch.errors import ServerFailed
from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.catalogue import NAMES, Settings, variants_named
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.repository.ensemble import ensemble
from tritonbatch.repository.layout import write_bulk, write_ensemble
from tritonbatch.repository.priority import Priority, QueuePolicy, priority, queue_policy
from tritonbatch.repository.settings import all_versions, latest_versions, on_gpus, response_cache, slo_histogram
from tritonbatch.repository.two_instances import bulk, interactive
from tritonbatch.repository.variants import DynamicBatching, dynamic
from tritonbatch.repository.versions import publish, rollback, versions
from tritonbatch.repository.warmup import warm_up
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

ROW = np.array([[1, 2, 3, 4]], np.float32)
X, Y = [TensorSpec("x", "TYPE_FP32", (4,))], [TensorSpec("y", "TYPE_FP32", (4,))]
SETTINGS = Settings(
    static_batch=8,
    dynamic=DynamicBatching(preferred_batch_sizes=(4, 8), max_queue_delay_us=100),
    priority=Priority(
        levels=3,
        policies={
            1: QueuePolicy(timeout_us=10_000_000, timeout_action="DELAY", allow_timeout_override=True),
            3: QueuePolicy(max_queue_size=100),
        },
    ),
    queue=QueuePolicy(timeout_us=10_000_000, max_queue_size=100),
    cache=True,
    warm_up=True,
)


def graph(factor: float, rounds: int = 0) -> bytes:
    """A model of y = factor * x; *rounds* of a large product make it slow and do not change the result."""
    constants = [numpy_helper.from_array(np.array(factor, np.float32), "factor")]
    nodes = [helper.make_node("Mul", ["x", "factor"], ["scaled"])]
    last = "scaled"
    if rounds:
        constants.append(numpy_helper.from_array(np.zeros((1024, 1024), np.float32), "m"))
        constants.append(numpy_helper.from_array(np.array([0], np.int64), "zero"))
        # The first product depends on the input, so that it cannot be computed in advance.
        nodes.append(helper.make_node("ReduceMean", ["scaled"], ["mean"], keepdims=0))
        nodes.append(helper.make_node("Mul", ["m", "mean"], ["p0"]))
        nodes += [helper.make_node("MatMul", [f"p{i}", "p0"], [f"p{i + 1}"]) for i in range(rounds)]
        nodes.append(helper.make_node("ReduceMax", [f"p{rounds}"], ["nothing"], keepdims=0))
        nodes.append(helper.make_node("Add", ["scaled", "nothing"], ["slow"]))
        last = "slow"
    nodes.append(helper.make_node("Identity", [last], ["y"]))
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy"]
    made = helper.make_graph(nodes, "g", tensors[:1], tensors[1:], constants)
    opsets = [helper.make_opsetid("", 18)]
    return bytes(helper.make_model(made, opset_imports=opsets, ir_version=10).SerializeToString())


FAST, SLOW = graph(2), graph(2, rounds=24)


def stem(name: str, max_batch_size: int = 64) -> ModelConfig:
    """A configuration without a scheduler."""
    return onnx_config(name, X, Y, max_batch_size=max_batch_size, instances=Instances())


def put(repository: Path, config: ModelConfig, *weights: bytes) -> str:
    """Write a model with *weights* as versions 1, 2 and so on; return its name."""
    name = str(config.name)
    for number, content in enumerate(weights, start=1):
        folder = repository / name / str(number)
        folder.mkdir(parents=True)
        (folder / "model.onnx").write_bytes(content)
    (repository / name / "config.pbtxt").write_text(config_text(config))
    return name


def one_at_a_time(name: str) -> ModelConfig:
    """A configuration that runs one request per execution, so that their order shows."""
    config = stem(name)
    config.max_batch_size = 1
    return config


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every variant with every extra, and one model for each thing to be seen."""
    folder = tmp_path_factory.mktemp("variants")
    for name in [*NAMES, "static-32"]:
        config = variants_named([name], stem(f"all-{name}"), SETTINGS)[name]
        put(folder, config, FAST)
    put(folder, priority(one_at_a_time("levels"), DynamicBatching(), Priority(levels=2)), SLOW)
    limited = queue_policy(dynamic(one_at_a_time("limited"), DynamicBatching()), QueuePolicy(max_queue_size=1))
    put(folder, limited, SLOW)
    put(folder, response_cache(stem("cached")), FAST)
    put(folder, warm_up(dynamic(stem("warm"), DynamicBatching(preferred_batch_sizes=(4,)))), FAST)
    put(folder, latest_versions(stem("latest"), 2), FAST, graph(3), graph(5))
    put(folder, all_versions(stem("every")), FAST, graph(3), graph(5))
    first, second = stem("first"), dynamic(stem("second", 16), DynamicBatching())
    put(folder, first, FAST)
    put(folder, second, graph(3))
    write_ensemble(folder, ensemble("both", first, second, {"x": "y"}))
    put(folder, stem("versioned"), graph(1), graph(10))
    return folder


@pytest.fixture(scope="module")
def server(variants: Path) -> Iterator[EmbeddedServer]:
    """One server for all of them, with a response cache, whose models can be loaded again."""
    names = sorted(path.name for path in variants.iterdir())
    with EmbeddedServer(variants, models=names, arguments=["--cache-config=local,size=1048576"]) as running:
        yield running


@pytest.fixture
def client(server: EmbeddedServer) -> Iterator[Client]:
    """A client of it."""
    with Client(server.grpc_url, protocol="grpc") as connected:
        yield connected


@pytest.mark.parametrize("name", [*NAMES, "static-32"])
def test_every_variant_loads_with_every_extra_and_answers(client: Client, name: str) -> None:
    """What Triton serves has the batch limit, scheduler, cache and warm-up of the file, and computes the same."""
    wanted = variants_named([name], stem(f"all-{name}"), SETTINGS)[name]
    served = client.config(f"all-{name}")
    assert served.max_batch_size == wanted.max_batch_size
    assert served.WhichOneof("scheduling_choice") == wanted.WhichOneof("scheduling_choice")
    assert served.response_cache.enable
    assert served.dynamic_batching.priority_queue_policy == wanted.dynamic_batching.priority_queue_policy
    assert [sample.batch_size for sample in served.model_warmup] == [s.batch_size for s in wanted.model_warmup]
    np.testing.assert_array_equal(client.infer(f"all-{name}", {"x": ROW})["y"], 2 * ROW)


def test_warm_up_was_executed_for_each_size(client: Client) -> None:
    """Before any request the statistics show one execution of each size, made of requests of one row."""
    counted = client.statistics("warm")
    assert {entry.batch_size: entry.compute_infer.count for entry in counted.batch_stats} == {1: 1, 4: 1, 64: 1}
    assert counted.inference_count == 1 + 4 + 64


def test_a_repeated_request_is_answered_from_the_cache(client: Client) -> None:
    """The second of two equal requests is a hit, and only one was executed."""
    for _ in range(2):
        np.testing.assert_array_equal(client.infer("cached", {"x": ROW})["y"], 2 * ROW)
    counted = client.settled_statistics("cached")
    assert (counted.inference_stats.cache_hit.count, counted.inference_stats.cache_miss.count) == (1, 1)
    assert counted.execution_count == 1


def finish_order(url: str, model: str, priorities: Sequence[int]) -> list[int]:
    """Send one request for each of *priorities* in this order, the first alone, and return how they finished."""
    finished: list[int] = []
    done = threading.Semaphore(0)

    def note(number: int) -> Callable[[Any, Any], None]:
        def callback(result: Any, error: Any) -> None:
            assert error is None
            finished.append(number)
            done.release()

        return callback

    tensor = triton.InferInput("x", [1, 4], "FP32")
    tensor.set_data_from_numpy(ROW)
    with triton.InferenceServerClient(url) as connection:
        for number, level in enumerate(priorities):
            connection.async_infer(model, [tensor], note(number), priority=level)
            # The first is being executed when the others come; they come in order.
            time.sleep(0.1 if number == 0 else 0.01)
        for _ in priorities:
            assert done.acquire(timeout=60)
    return finished


def test_level_1_overtakes_level_2(server: EmbeddedServer, client: Client) -> None:
    """Behind a request that runs, one of level 1 that came last is next, and the unmarked keep their order."""
    client.infer("levels", {"x": ROW})
    assert finish_order(server.grpc_url, "levels", (0, 2, 0, 2, 1)) == [0, 4, 1, 2, 3]


def test_a_full_queue_refuses_at_once_as_overloaded(server: EmbeddedServer, client: Client) -> None:
    """Of eight at once those beyond the room for one are Overloaded to the client, and the server counts no failure."""
    client.infer("limited", {"x": ROW})

    def send(_: int) -> str:
        with Client(server.grpc_url, protocol="grpc") as own:
            try:
                own.infer("limited", {"x": ROW})
            except Overloaded as error:
                return str(error)
        return ""

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert 2 <= answers.count("") < 8
    assert all("Exceeds maximum queue size" in answer for answer in answers if answer)
    assert client.settled_statistics("limited").inference_stats.fail.count == 0


def test_an_ensemble_gives_what_its_steps_give(client: Client) -> None:
    """One request to the ensemble equals a request to each step, row by row."""
    rows = np.random.default_rng(0).random((16, 4), np.float32)
    between = client.infer("first", {"x": rows})["y"]
    np.testing.assert_array_equal(client.infer("both", {"x": rows})["y"], client.infer("second", {"x": between})["y"])
    assert client.config("both").max_batch_size == 16


@pytest.mark.parametrize(("model", "numbers"), [("latest", ["2", "3"]), ("every", ["1", "2", "3"])])
def test_a_version_policy_decides_what_is_served(server: EmbeddedServer, model: str, numbers: list[str]) -> None:
    """The latest two or all versions are there, and a request without a version meets the highest."""
    with triton.InferenceServerClient(server.grpc_url) as connection:
        assert sorted(connection.get_model_metadata(model).versions) == numbers
    with Client(server.grpc_url, protocol="grpc") as client:
        np.testing.assert_array_equal(client.infer(model, {"x": ROW})["y"], 5 * ROW)


def test_a_rollback_changes_which_version_answers(server: EmbeddedServer, client: Client) -> None:
    """After loading again the earlier version answers, and after rolling forward the later one does."""
    model = server.repository / "versioned"
    seen = []
    with triton.InferenceServerClient(server.grpc_url) as connection:
        for target in (2, 1, 2):
            assert rollback(model, target) == target
            connection.load_model("versioned")
            seen.append(float(client.infer("versioned", {"x": ROW})["y"][0, 0]))
    assert seen == [10, 1, 10]


def test_two_instances_share_weights_and_take_turns(tmp_path: Path) -> None:
    """Both halves load from one file under the rate limiter, follow a new version, and answer at the same time."""
    model = tmp_path / "m"
    config = stem("m")

    def build(folder: Path, version: int) -> bool:
        (folder / str(version)).mkdir()
        (folder / str(version) / "model.onnx").write_bytes(FAST)
        (folder / "samples.npz").write_bytes(b"")
        return True

    publish(model, 2, build)
    (model / "config.pbtxt").write_text(config_text(interactive(config)))
    write_bulk(model, bulk(config))
    shutil.copytree(model / "1", model / "2")
    write_bulk(model, bulk(config))
    assert versions(tmp_path / "m_bulk") == (1, 2)
    with EmbeddedServer(tmp_path, arguments=["--rate-limit=execution_count"]) as running:

        def send(name: str) -> float:
            with Client(running.grpc_url, protocol="grpc") as client:
                return float(client.infer(name, {"x": ROW})["y"][0, 0])

        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(send, ["m", "m_bulk"] * 4)) == [2.0] * 8
        with Client(running.grpc_url, protocol="grpc") as client:
            assert [client.config(name).max_batch_size for name in ("m", "m_bulk")] == [8, 64]
            assert client.statistics("m_bulk").version == "2"


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (on_gpus(stem("m")), "instance group m_0 of model m has kind KIND_GPU but no GPUs are available"),
        (on_gpus(stem("m"), (0,)), "instance group m_0 of model m specifies invalid or unsupported gpu id 0"),
        (slo_histogram(stem("m"), 100), 'ModelConfig" has no field named "model_metrics"'),
    ],
)
def test_what_this_server_cannot_load_gives_its_own_reason(tmp_path: Path, config: ModelConfig, says: str) -> None:
    """Without a GPU KIND_GPU is refused, and Triton 2.51 does not know the buckets that 2.52 brought."""
    put(tmp_path, config, FAST)
    with pytest.raises(ServerFailed, match=says), EmbeddedServer(tmp_path):
        pass


def test_integers_are_warmed_up_in_range(repository: Path, tmp_path: Path) -> None:
    """An index into a table of ten rows is warmed up with zeros; with random numbers the model would not even load."""
    weights = (repository / "gather" / "1" / "model.onnx").read_bytes()
    index, value = TensorSpec("index", "TYPE_INT64", (1,)), TensorSpec("value", "TYPE_FP32", (1,))
    for name in ("good", "bad"):
        config = warm_up(onnx_config(name, [index], [value], max_batch_size=4, instances=Instances()))
        for sample in config.model_warmup:
            if name == "bad":
                sample.inputs["index"].random_data = True
        put(tmp_path, config, weights)
    with pytest.raises(ServerFailed, match="out of data bounds"), EmbeddedServer(tmp_path, models=["bad"]):
        pass
    with EmbeddedServer(tmp_path, models=["good"]) as running, Client(running.grpc_url, protocol="grpc") as client:
        assert client.infer("good", {"index": np.array([[7]])})["value"] == 7
