"""Switch Triton's own trace on for one model and the length of a run, and put its settings back afterwards.

What Triton allows (2.51): level, rate, count and log_frequency can be set per model while it runs; the file and the
mode only at its start, so the server must have been started with :func:`trace_arguments` (or the same by hand). Without
a ``log_frequency`` the end of the file stays in the server's buffer until it stops, and a kill loses it; with one, a
file is closed after so many requests and when the trace is switched off.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from tritonbatch.client import Protocol
from tritonbatch.client.http_language import IN_A_PATH
from tritonbatch.errors import InvalidInput, NotSupported, ServerFailed

REQUESTS_PER_FILE = 1000
SETTLED_S, WAIT_S = 0.1, 5.0
CHANGED = ("trace_level", "trace_rate", "trace_count", "log_frequency")
BY_HAND = "start it with --trace-config mode=triton --trace-config triton,file=/path/trace.json"

Settings = Mapping[str, Any]


@dataclass(slots=True)
class Tracing:
    """What was traced: *file* is the path that the server writes to, on its own host; one request in *rate* is in it.

    ``files`` are the files of this run, once the block has ended; none when the server runs on another host.
    """

    file: Path
    rate: int
    files: list[Path] = field(default_factory=list)


def trace_arguments(file: Path) -> list[str]:
    """Arguments of tritonserver that let a trace be switched on later; nothing is traced by them."""
    return ["--trace-config", "mode=triton", "--trace-config", f"triton,file={file.resolve()}"]


def trace_files(configured: Path) -> list[Path]:
    """*configured* and the numbered files that Triton writes beside it under a ``log_frequency``, those that exist."""
    beside = configured.parent.glob(f"{configured.name}.*")
    rolled = [path for path in beside if path.name.rpartition(".")[2].isdecimal()]
    ordered = sorted(rolled, key=lambda path: int(path.name.rpartition(".")[2]))
    return [path for path in (configured, *ordered) if path.is_file()]


@contextmanager
def traced(url: str, protocol: Protocol, model: str, *, rate: int = 1) -> Iterator[Tracing]:
    """Trace one request in *rate* of *model* on the server at *url* while the block lasts.

    Afterwards the settings are as before, whatever happened in the block.

    Raises:
        InvalidInput: the rate is less than 1.
        NotSupported: the server was started without a trace file, or with OpenTelemetry's mode.
        ServerFailed: it does not answer, or refuses to change the settings.
    """
    if rate < 1:
        raise InvalidInput(f"The trace rate is {rate}: expected 1 for every request, N for one in N.")
    before, common = _settings(url, protocol, model), _settings(url, protocol, "")
    _check(url, before)
    tracing = Tracing(Path(str(before["trace_file"])), rate)
    known = set(_sizes(tracing.file))
    every = {"trace_rate": str(rate), "trace_count": "-1", "log_frequency": str(REQUESTS_PER_FILE)}
    _settings(url, protocol, model, {"trace_level": ["TIMESTAMPS"], **every})
    # A setting that the model shared with all others is cleared, so that it follows them again.
    restored = {name: None if before[name] == common[name] else before[name] for name in CHANGED}
    try:
        yield tracing
    except BaseException:
        with suppress(ServerFailed):  # what ended the block says more than a server that is gone since
            _settings(url, protocol, model, restored)
        raise
    else:
        _settings(url, protocol, model, restored)
    finally:
        tracing.files = [path for path in _settled(tracing.file) if path not in known]


def _check(url: str, settings: Settings) -> None:
    if settings.get("trace_mode", "triton") != "triton":
        raise NotSupported(
            f"The server at {url} traces in mode {settings['trace_mode']!r}: expected 'triton'; {BY_HAND}."
        )
    if not settings.get("trace_file"):
        raise NotSupported(f"The server at {url} has no trace file, and Triton takes one only at its start: {BY_HAND}.")


def _sizes(file: Path) -> dict[Path, int]:
    return {path: path.stat().st_size for path in trace_files(file)}


def _settled(file: Path) -> list[Path]:
    """The files once they have stopped growing: requests on their way when the trace ends are still written."""
    deadline = time.monotonic() + WAIT_S
    sizes = _sizes(file)
    while time.monotonic() < deadline:
        time.sleep(SETTLED_S)
        now = _sizes(file)
        if now == sizes:
            break
        sizes = now
    return list(sizes)


def _settings(url: str, protocol: Protocol, model: str, changed: Settings | None = None) -> dict[str, Any]:
    """The model's settings ("" for those of all), after changing some when given; None clears one."""
    try:
        return (_over_grpc if protocol == "grpc" else _over_http)(url, model, changed)
    except urllib.error.HTTPError as error:
        reason = error.read(4096).decode(errors="replace")
        raise ServerFailed(f"The trace of model {model!r} at {url} cannot be set: {reason or error}") from error
    except (InferenceServerException, OSError, ValueError) as error:
        raise ServerFailed(f"The trace of model {model!r} at {url} cannot be set: {error}.") from error


def _over_http(url: str, model: str, changed: Settings | None) -> dict[str, Any]:
    # tritonclient would escape a colon in the model's name, which Triton does not undo.
    path = f"models/{quote(model, safe=IN_A_PATH)}/trace/setting" if model else "trace/setting"
    body = None if changed is None else json.dumps(changed).encode()
    request = urllib.request.Request(f"http://{url}/v2/{path}", body)
    with urllib.request.urlopen(request, timeout=WAIT_S) as answer:  # noqa: S310 - the same
        settings: dict[str, Any] = json.load(answer)
    return settings


def _over_grpc(url: str, model: str, changed: Settings | None) -> dict[str, Any]:
    with tritonclient.grpc.InferenceServerClient(url) as client:
        if changed is None:
            answer = client.get_trace_settings(model, client_timeout=WAIT_S)
        else:
            answer = client.update_trace_settings(model, dict(changed), client_timeout=WAIT_S)
    values = {name: list(setting.value) for name, setting in answer.settings.items()}
    return {name: value if name == "trace_level" else "".join(value[:1]) for name, value in values.items()}
