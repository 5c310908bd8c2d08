"""The gate on a real server: ten unchanged reruns pass, an execution that takes 10 % longer is caught.

    python benchmarks/gate_check.py [--reruns 10] [--repeats 4] [--seconds 5]

The model takes a constant 10 ms per execution, then 11 ms in the changed server; everything else is real: Triton, the
load, its records, and `tritonbatch load` and `tritonbatch gate` as their users run them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from tritonbatch.models.model import TensorSpec
from tritonbatch.repository.config import Instances, config_text, onnx_config
from tritonbatch.server import EmbeddedServer

COMMAND = str(Path(sys.executable).parent / "tritonbatch")
MODEL = """import time

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        time.sleep(SECONDS)
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", request.inputs()[0].to_dlpack())])
            for request in requests
        ]
"""


def write_repository(repository: Path, execution_s: float) -> Path:
    """`paced`: every execution takes *execution_s*, whatever is in it."""
    specs = [TensorSpec(name, "TYPE_FP32", (16,)) for name in "xy"]
    config = onnx_config("paced", specs[:1], specs[1:], max_batch_size=8, instances=Instances())
    config.backend = "python"
    config.dynamic_batching.SetInParent()
    folder = repository / "paced" / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(MODEL.replace("SECONDS", str(execution_s)))
    (repository / "paced" / "config.pbtxt").write_text(config_text(config))
    return repository


def load(server: EmbeddedServer, output: Path, seed: int, options: argparse.Namespace) -> list[str]:
    """The folders of *repeats* runs at 50 requests/s."""
    pattern = f"poisson:rate=50,seconds={options.seconds:g}"
    command = [COMMAND, "load", "--url", server.http_url, "--model", "paced", "--pattern", pattern]
    command += ["--repeats", str(options.repeats), "--seed", str(seed), "--output", str(output)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return [str(path.parent) for path in sorted(output.glob("runs/*/*/*/records.json"))]


def gate(folders: list[str], *flags: str) -> int:
    """The exit code of the gate on *folders*."""
    return subprocess.run([COMMAND, "gate", *folders, *flags], capture_output=True, timeout=120, check=False).returncode


def main() -> None:
    """Save a baseline, rerun, change, and end with the line of counts."""
    parser = argparse.ArgumentParser(description="The gate on a real server.")
    parser.add_argument("--reruns", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    console = Console(width=100)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        baseline = ["--baseline", str(folder / "baseline.json")]
        with EmbeddedServer(write_repository(folder / "before", 0.010)) as server:
            gate(load(server, folder / "base", 1000, options), "--save-baseline", str(folder / "baseline.json"))
            codes = []
            for number in range(options.reruns):
                codes.append(gate(load(server, folder / f"rerun-{number}", 2000 + 10 * number, options), *baseline))
                console.print(f"rerun {number + 1} of {options.reruns}: exit code {codes[-1]}")
        with EmbeddedServer(write_repository(folder / "after", 0.011)) as server:
            caught = gate(load(server, folder / "slower", 5000, options), *baseline)
    console.print(
        f"unchanged reruns passed {codes.count(0)} of {len(codes)}; 10 % slower execution: exit code {caught}"
    )


if __name__ == "__main__":
    main()
