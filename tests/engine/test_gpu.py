"""On a GPU: a real engine of each precision, its results, and t(B) beside ONNX Runtime's and a CUDA graph's.

The figures are printed as one JSON line per precision (`pytest -m gpu -rP`), and written to $OUT if that is set.
"""

from __future__ import annotations

import importlib.util
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tritonbatch.engine.build import build_engine, device_here
from tritonbatch.engine.lower_precision import lower_precision, read_samples
from tritonbatch.engine.settings import PRECISIONS, EngineSettings, Profile
from tritonbatch.errors import NotSupported
from tritonbatch.export.build import build_named
from tritonbatch.models import ranking_mlp

BATCHES = (1, 8, 64)
# Of the size of the result: what each precision may lose against FP32 on the CPU.
LARGEST = {"fp32": 5e-3, "fp16": 1e-2, "bf16": 5e-2, "int8": 1e-1}


def _missing() -> str:
    try:
        device_here()
    except NotSupported:
        return "there is no NVIDIA GPU here"
    if importlib.util.find_spec("tensorrt") is None:
        return "tensorrt is not installed"
    return "" if torch.cuda.is_available() else "this torch is built without CUDA"


pytestmark = [pytest.mark.gpu, pytest.mark.timeout(600), pytest.mark.skipif(bool(_missing()), reason=_missing())]


@pytest.fixture(scope="module")
def version(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The version folder of the exported ranking network."""
    return build_named("ranking_mlp", tmp_path_factory.mktemp("gpu") / "ranking_mlp", max_batch_size=64).path.parent


@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_engine_agrees_and_is_timed(precision: str, version: Path) -> None:
    """The engine's results stay near FP32's, and its times are recorded with those of a CUDA graph."""
    lowered = lower_precision(version, precision)
    settings = EngineSettings(
        onnx_file=lowered.path.name,
        precision=precision,
        profiles=(Profile("features", (1, ranking_mlp.FEATURES), (64, ranking_mlp.FEATURES), (64, 512)),),
    )
    engine = _Engine(build_engine(settings, version))
    rows = torch.from_numpy(read_samples(version.parent / "samples.npz")["features"])
    with torch.no_grad():
        expected = ranking_mlp.build().module(rows).numpy()
    got = engine.run(rows).numpy()
    deviation = float(np.linalg.norm(got - expected) / np.linalg.norm(expected))
    figures = {"precision": precision, "deviation": deviation, "cpu_deviation": lowered.deviation, "t_ms": {}}
    for batch in BATCHES:
        run, graph = engine.prepared(rows[:batch])
        figures["t_ms"][batch] = {"tensorrt": _milliseconds(run), "cuda_graph": _milliseconds(graph)}
    _record(f"tensorrt-{precision}", figures)
    assert deviation < LARGEST[precision]


def test_onnxruntime_on_cuda_is_timed(version: Path) -> None:
    """ONNX Runtime's CUDA provider gives the times that an engine is compared with."""
    onnxruntime = pytest.importorskip("onnxruntime")
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this onnxruntime is built without CUDA")
    session = onnxruntime.InferenceSession(str(version / "model.onnx"), providers=["CUDAExecutionProvider"])
    rows = read_samples(version.parent / "samples.npz")["features"]
    times = {}
    for batch in BATCHES:
        binding = session.io_binding()
        value = onnxruntime.OrtValue.ortvalue_from_numpy(rows[:batch], "cuda", 0)
        binding.bind_ortvalue_input("features", value)
        binding.bind_output("scores", "cuda")

        def run(binding: Any = binding) -> None:
            session.run_with_iobinding(binding)
            binding.synchronize_outputs()

        times[batch] = {"onnxruntime_cuda": _milliseconds(run)}
    _record("onnxruntime-cuda", {"t_ms": times})


class _Engine:
    """An engine with one input and one output, run on torch's memory."""

    def __init__(self, plan: Path) -> None:
        import tensorrt  # noqa: PLC0415

        self._runtime = tensorrt.Runtime(tensorrt.Logger(tensorrt.Logger.ERROR))
        self._engine = self._runtime.deserialize_cuda_engine(plan.read_bytes())
        self._context = self._engine.create_execution_context()
        self._stream = torch.cuda.Stream()

    def run(self, rows: torch.Tensor) -> torch.Tensor:
        """The scores of *rows*, back on the CPU."""
        enqueue, scores = self._bind(rows)
        enqueue()
        self._stream.synchronize()
        return scores.cpu()

    def prepared(self, rows: torch.Tensor) -> tuple[Callable[[], None], Callable[[], None]]:
        """Two functions that run *rows* to the end: one launch for each kernel, and one CUDA graph of them all."""
        enqueue, _ = self._bind(rows)

        def run() -> None:
            enqueue()
            self._stream.synchronize()

        run()  # allocates what must not be allocated while capturing
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=self._stream):
            enqueue()

        def replay() -> None:
            graph.replay()
            torch.cuda.synchronize()

        return run, replay

    def _bind(self, rows: torch.Tensor) -> tuple[Callable[[], None], torch.Tensor]:
        features = rows.cuda().contiguous()
        scores = torch.empty((len(rows), ranking_mlp.CANDIDATES), device="cuda")
        torch.cuda.synchronize()
        self._context.set_input_shape("features", tuple(features.shape))
        self._context.set_tensor_address("features", features.data_ptr())
        self._context.set_tensor_address("scores", scores.data_ptr())

        def enqueue(_alive: tuple[torch.Tensor, torch.Tensor] = (features, scores)) -> None:
            assert self._context.execute_async_v3(self._stream.cuda_stream)

        return enqueue, scores


def _milliseconds(run: Callable[[], None], repeats: int = 200) -> float:
    """The median time of *run*."""
    for _ in range(20):
        run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append((time.perf_counter() - start) * 1e3)
    return float(np.median(times))


def _record(name: str, figures: dict[str, Any]) -> None:
    text = json.dumps({"device": device_here().gpu, **figures})
    print(text)
    if folder := os.environ.get("OUT"):
        (Path(folder) / f"{name}.json").write_text(text)
