"""The server's truth beside the client's, on the embedded Triton: trace, split and metrics of requests with ids."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil
import pytest

from tritonbatch.client import Client, Options
from tritonbatch.client.counters import executions_between
from tritonbatch.errors import InvalidInput, NotSupported, RequestFailed, ServerFailed
from tritonbatch.loadtest.records import STATUSES, Records
from tritonbatch.loadtest.tracing import Tracing, trace_arguments, trace_files, traced
from tritonbatch.observe.join import Joined, clock_offset_ns, join, with_rows
from tritonbatch.observe.pending import sampling
from tritonbatch.observe.split import Split, instance_count, means_from_statistics, means_of, split
from tritonbatch.observe.trace import Trace, read_trace
from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

DELAY_MS = 30
MODEL = """\
import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(0.04)
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", x.to_dlpack())]) for x in inputs]
"""
CONFIG = """\
backend: "python"
max_batch_size: 4
instance_group {{ kind: KIND_CPU count: 1 }}
dynamic_batching {{ {batching} }}
input {{ name: "x" data_type: TYPE_FP32 dims: [1] }}
output {{ name: "y" data_type: TYPE_FP32 dims: [1] }}
"""
BATCHING = {
    "delayed": f"max_queue_delay_microseconds: {DELAY_MS * 1000}",
    "greedy": "",
    "refusing": "default_queue_policy { max_queue_size: 4 default_timeout_microseconds: 1000 timeout_action: REJECT }",
}
"""Models that take 40 ms for an execution of up to 4 rows, by what their batcher does."""


@pytest.fixture(scope="module")
def slow_repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models of BATCHING."""
    folder = tmp_path_factory.mktemp("slow_repository")
    for name, batching in BATCHING.items():
        (folder / name / "1").mkdir(parents=True)
        (folder / name / "1" / "model.py").write_text(MODEL)
        (folder / name / "config.pbtxt").write_text(CONFIG.format(batching=batching))
    return folder


@pytest.fixture(scope="module")
def slow_server(slow_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """A Triton with those models that can be told to trace."""
    arguments = trace_arguments(tmp_path_factory.mktemp("trace") / "trace.json")
    with EmbeddedServer(slow_repository, arguments=arguments) as running:
        yield running


def play(client: Client, model: str, intended_ms: Sequence[int], run: str) -> Records:
    """Send one row at each of these milliseconds with the ids of the run; all at 0: one after another."""
    records = Records(run, model, "served", np.array(intended_ms, np.int64) * 1_000_000)
    array, start_ns = np.ones((1, 1), np.float32), time.perf_counter_ns()
    client.contract(model)

    def send(k: int) -> None:
        time.sleep(max(0.0, (start_ns + int(records.intended_ns[k]) - time.perf_counter_ns()) / 1e9))
        records.sent_ns[k] = time.perf_counter_ns() - start_ns
        try:
            client.infer(model, {"x": array}, options=Options(request_id=f"{run}-{k}"))
            status = "ok"
        except RequestFailed as error:
            status = {"Overloaded": "rejected", "TimedOut": "timeout"}.get(type(error).__name__, "failed")
        records.done_ns[k] = time.perf_counter_ns() - start_ns
        records.status[k] = STATUSES.index(status)

    with ThreadPoolExecutor(len(records) if any(intended_ms) else 1) as pool:
        list(pool.map(send, range(len(records))))
    return records


@dataclass(frozen=True)
class Played:
    """One traced run and all that is known of it."""

    records: Records
    tracing: Tracing
    trace: Trace
    joined: Joined
    executions: dict[int, int]

    def split(self, instances: int = 1) -> Split:
        """Its latency in parts."""
        return split(self.records, self.trace, self.joined, instances)


def traced_run(server: EmbeddedServer, model: str, intended_ms: Sequence[int], run: str, rate: int = 1) -> Played:
    """Play with the trace on, and read everything that was left."""
    with Client(server.http_url, retry=None) as client:
        before = client.settled_statistics(model)
        with traced(server.http_url, "http", model, rate=rate) as tracing:
            records = play(client, model, intended_ms, run)
        counted = {each.batch_size: each.count for each in executions_between(before, client.settled_statistics(model))}
    trace = read_trace(tracing.files)
    joined = join(records, trace)
    return Played(records, tracing, with_rows(trace, records, joined), joined, counted)


def sizes(trace: Trace) -> dict[int, int]:
    """How many executions of each size the trace shows."""
    first = np.unique(trace.execution[trace.execution >= 0], return_index=True)[1]
    batch = trace.batch[trace.execution >= 0][first]
    return {int(size): int((batch == size).sum()) for size in np.unique(batch)}


def test_lone_requests_wait_for_the_batch(slow_server: EmbeddedServer) -> None:
    """Under a queue delay a request that comes alone to an idle instance waits the whole delay for company."""
    played = traced_run(slow_server, "delayed", [0, 0, 0], "lone")
    parts = played.split()
    assert played.joined.complete
    assert played.joined.row.tolist() == [0, 1, 2]
    assert sizes(played.trace) == played.executions == {1: 3}
    assert parts.batch_wait_ns is not None
    assert parts.instance_wait_ns is not None
    assert (parts.batch_wait_ns >= DELAY_MS * 1_000_000).all()
    assert (parts.instance_wait_ns == 0).all()
    assert (parts.total_ns == (played.records.done_ns - played.records.intended_ns)).all()


def test_a_burst_waits_for_the_instance(slow_server: EmbeddedServer) -> None:
    """Of a burst on one instance, requests wait while the executions before theirs run; with a second, none would."""
    played = traced_run(slow_server, "greedy", [100] * 11, "burst")
    parts = played.split()
    assert sizes(played.trace) == played.executions
    assert parts.instance_wait_ns is not None
    assert len(played.executions) > 1
    trace = played.trace
    begin_ns, end_ns = np.unique(np.stack([trace.compute_start_ns, trace.compute_end_ns]), axis=1)
    rows = played.joined.row
    queued_ns, started_ns = trace.queue_start_ns[rows][:, None], trace.compute_start_ns[rows][:, None]
    overlap_ns = np.minimum(started_ns, end_ns) - np.maximum(queued_ns, begin_ns)
    assert parts.instance_wait_ns.tolist() == np.maximum(overlap_ns, 0).sum(axis=1).tolist()
    assert parts.instance_wait_ns.max() > parts.compute_ns.min() > 0
    until_output_ns = parts.compute_input_ns + parts.compute_infer_ns  # an answer may arrive before COMPUTE_END
    for each in np.unique(trace.execution):
        assert len(np.unique(until_output_ns[trace.execution[rows] == each])) == 1
    means, parts_of_two = means_of(parts), means_of(played.split(instances=2))
    assert means.instance_wait_ms is not None
    assert means.instance_wait_ms > 0
    assert parts_of_two.instance_wait_ms == 0


def test_the_clocks_of_one_host_are_the_same(slow_server: EmbeddedServer) -> None:
    """A request's moments on the server lie between its sending and its answer on this process's own clock."""
    start_ns = time.perf_counter_ns()
    played = traced_run(slow_server, "greedy", [0, 60], "clock")
    end_ns = time.perf_counter_ns()
    assert start_ns < played.trace.receive_ns.min() < played.trace.send_ns.max() < end_ns
    bounds = clock_offset_ns(played.records, played.trace, played.joined)
    assert bounds is not None
    assert start_ns < bounds[1]
    assert bounds[0] < end_ns


def test_one_request_in_so_many(slow_server: EmbeddedServer) -> None:
    """With a sampled rate some requests are split, and their queue is one part."""
    played = traced_run(slow_server, "greedy", [0, 60, 120, 180], "sampled", rate=2)
    assert len(played.trace) == 2
    assert not played.joined.complete
    assert played.split().batch_wait_ns is None
    assert len(played.split().record) == 2


def test_refused_requests_are_counted_at_the_client(slow_server: EmbeddedServer) -> None:
    """The server counts no refusal by a full queue, a timeout in the queue as REJECTED, and traces both."""
    with sampling(slow_server.metrics_url, "refusing", interval_s=0.02) as readings:
        played = traced_run(slow_server, "refusing", [100] * 16, "refused")
    counts = {name: int((played.records.status == code).sum()) for code, name in enumerate(STATUSES)}
    assert counts["rejected"] > 0
    assert counts["ok"] > 0
    assert counts["ok"] + counts["rejected"] + counts["timeout"] == 16
    assert readings.column("failed_REJECTED")[-1] - readings.column("failed_REJECTED")[0] == counts["timeout"]
    assert readings.column("failed_OTHER")[-1] == 0
    assert readings.column("success")[-1] - readings.column("success")[0] == counts["ok"]
    assert len(played.trace) == 16
    assert (played.joined.row >= 0).all()
    assert len(played.split().record) == counts["ok"]


def test_pending_requests_are_seen(slow_server: EmbeddedServer) -> None:
    """While a burst waits on one instance the gauge is above zero, and at the end it is back."""
    with (
        Client(slow_server.http_url) as client,
        sampling(slow_server.metrics_url, "greedy", interval_s=0.01) as readings,
    ):
        play(client, "greedy", [100] * 16, "pending")
        time.sleep(0.1)
    pending = readings.column("pending")
    assert pending.max() > 0
    assert pending[-1] == 0
    assert readings.missed == 0
    assert readings.column("inferences")[-1] - readings.column("inferences")[0] == 16
    assert sorted(readings.time_ns) == readings.time_ns


def test_means_of_trace_and_statistics_agree(slow_server: EmbeddedServer) -> None:
    """Both come from the same moments of the same requests, so the parts are the same to rounding."""
    with Client(slow_server.http_url) as client:
        assert instance_count(client.config("greedy")) == 1
        before = client.settled_statistics("greedy")
        with traced(slow_server.http_url, "http", "greedy") as tracing:
            records = play(client, "greedy", [100] * 6, "means")
        counted = means_from_statistics(records, before, client.settled_statistics("greedy"))
    trace = read_trace(tracing.files)
    means = means_of(split(records, trace, join(records, trace), 1))
    assert counted.queue_ms == pytest.approx(means.queue_ms, rel=1e-3)
    assert means.compute_ms <= counted.compute_ms * 1.001  # an answer may arrive before COMPUTE_END
    assert counted.network_ms + counted.compute_ms == pytest.approx(means.network_ms + means.compute_ms, rel=1e-3)
    assert counted.server_requests == means.requests == 6


def _fail_after(client: Client) -> None:
    """Two requests that are answered, then one for a model that is not there."""
    play(client, "greedy", [0, 0], "before")
    client.infer("missing", {"x": np.ones((1, 1), np.float32)})


def test_the_settings_are_put_back(slow_server: EmbeddedServer) -> None:
    """After a traced block, ended by an error or not, over either protocol, nothing more is traced."""
    with Client(slow_server.http_url) as client:
        with pytest.raises(RequestFailed), traced(slow_server.grpc_url, "grpc", "greedy") as tracing:
            _fail_after(client)
        assert len(read_trace(tracing.files)) == 2
        files = trace_files(tracing.file)
        play(client, "greedy", [0, 0], "after")
        with traced(slow_server.http_url, "http", "greedy") as later:
            pass
    assert trace_files(tracing.file) == files
    assert later.files == []


def test_a_server_without_a_trace_file_is_refused(server: EmbeddedServer) -> None:
    """Triton takes the file at its start only, so the message says how; wrong models and rates are named."""
    for url, protocol in ((server.http_url, "http"), (server.grpc_url, "grpc")):
        with pytest.raises(NotSupported, match="--trace-config"), traced(url, protocol, "linear"):  # type: ignore[arg-type]
            pass
    with pytest.raises(ServerFailed, match="'missing'"), traced(server.http_url, "http", "missing"):
        pass
    with pytest.raises(InvalidInput, match="rate is 0"), traced(server.http_url, "http", "linear", rate=0):
        pass


def _kill_after(client: Client, argument: str) -> None:
    """Two requests that are answered, then the server with that argument is killed, and a third."""
    play(client, "greedy", [0, 0], "lost")
    for process in psutil.Process().children(recursive=True):
        if process.name() == "tritonserver" and argument in " ".join(process.cmdline()):
            process.kill()
    time.sleep(0.2)
    client.infer("greedy", {"x": np.ones((1, 1), np.float32)})


def test_a_server_that_dies_leaves_what_it_wrote(slow_repository: Path, tmp_path: Path) -> None:
    """The metrics' readings end and the error is the block's own; complete files of the trace can still be read."""
    file = tmp_path / "trace.json"
    with (
        EmbeddedServer(slow_repository, models=["greedy"], arguments=trace_arguments(file)) as running,
        Client(running.http_url, retry=None, timeout_s=5) as client,
    ):
        with traced(running.http_url, "http", "greedy"):
            play(client, "greedy", [0, 0], "whole")
        with (
            pytest.raises(RequestFailed),
            sampling(running.metrics_url, "greedy", interval_s=0.02) as readings,
            traced(running.http_url, "http", "greedy"),
        ):
            _kill_after(client, str(file))
    assert readings.missed > 0
    assert len(readings.time_ns) > 0
    assert read_trace(trace_files(file)).request_id.tolist() in (["whole-0", "whole-1"], ["whole-1", "whole-0"])
