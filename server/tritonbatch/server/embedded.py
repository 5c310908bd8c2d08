"""The real tritonserver as a library: started on free ports, waited for, stopped, with nothing left behind.

    with EmbeddedServer(Path("model_repository"), config_name="dynamic") as server:
        ...  # server.http_url, server.grpc_url, server.metrics_url

It knows the server's command line and its life; not what is in a configuration, nor how to speak to it.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Self

from tritonbatch.errors import InvalidInput, NotSupported, ServerFailed
from tritonbatch.server.launch import PACKAGE, Ports, assemble_backends, environment, free_ports
from tritonbatch.server.log import error_lines
from tritonbatch.server.provision import check_machine, default_runtime, is_provisioned, tritonserver

EXIT_TIMEOUT_S = 10
START_ATTEMPTS = 3
ANY_FREE = Ports()


class EmbeddedServer:
    """A tritonserver 2.51.0 that serves *repository* on localhost for the length of a ``with`` block.

    *config_name* selects ``configs/<config_name>.pbtxt`` of each model where that file exists; *models* restricts
    what is loaded (all when empty); *arguments* go to tritonserver unchanged.

    Raises (on entering):
        InvalidInput: the repository does not exist, or a port is taken.
        NotSupported: this machine cannot run the server, or the runtime is not there.
        ServerFailed: it did not become ready; the message holds the server's own error line.
    """

    def __init__(
        self,
        repository: Path,
        *,
        config_name: str | None = None,
        models: Sequence[str] = (),
        ports: Ports = ANY_FREE,
        arguments: Sequence[str] = (),
        ready_timeout_s: float = 120.0,
    ) -> None:
        self.repository = repository.resolve()
        self.config_name = config_name
        self.models = tuple(models)
        self.ports = ports
        self.arguments = tuple(arguments)
        self.ready_timeout_s = ready_timeout_s
        self._guard: subprocess.Popen[bytes] | None = None
        self._folder: Path | None = None

    @property
    def http_url(self) -> str:
        """``host:port`` of the HTTP endpoint, as tritonclient wants it (no scheme)."""
        return f"localhost:{self.ports.http}"

    @property
    def grpc_url(self) -> str:
        """``host:port`` of the gRPC endpoint."""
        return f"localhost:{self.ports.grpc}"

    @property
    def metrics_url(self) -> str:
        """The Prometheus endpoint's full URL."""
        return f"http://localhost:{self.ports.metrics}/metrics"

    @property
    def log(self) -> str:
        """All that the server has printed so far."""
        if self._folder is None:
            return ""
        return (self._folder / "server.log").read_text(errors="replace")

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and wait until it is ready. Prefer the ``with`` statement, which also stops it."""
        check_machine()
        runtime = _runtime()
        _check_repository(self.repository, self.models)
        wanted = self.ports
        for attempt in range(1, START_ATTEMPTS + 1):
            self.ports = free_ports(wanted)
            try:
                self._launch(runtime)
                self._wait_until_ready()
            except BaseException as error:
                lost_race = isinstance(error, ServerFailed) and "Socket" in self.log and wanted != self.ports
                self.stop()
                # Between finding a port and binding it, another process can take it: try with others.
                if lost_race and attempt < START_ATTEMPTS:
                    continue
                raise
            return

    def stop(self) -> None:
        """Stop the server, its stubs and its guard; harmless when it is not running."""
        if self._guard is not None:
            assert self._guard.stdin is not None  # noqa: S101 - Popen was given a pipe
            self._guard.stdin.close()
            self._guard.wait(EXIT_TIMEOUT_S + 10)
            self._guard = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def check_alive(self) -> None:
        """Raise ServerFailed when the server has stopped by itself."""
        if self._guard is None or self._guard.poll() is not None:
            code = self._guard.returncode if self._guard else "none"
            raise ServerFailed(f"The embedded Triton stopped by itself (exit code {code}): {error_lines(self.log)}")

    def _launch(self, runtime: Path) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="tritonbatch-server-"))
        shm_prefix = f"tritonbatch_{uuid.uuid4().hex[:12]}"
        server = self._command(runtime, assemble_backends(runtime, self._folder / "backends"), shm_prefix)
        guard = [
            sys.executable,
            "-I",
            "-S",
            str(PACKAGE / "guard.py"),
            str(EXIT_TIMEOUT_S),
            shm_prefix,
            str(self._folder),
        ]
        with (self._folder / "server.log").open("wb") as log:
            self._guard = subprocess.Popen(
                [*guard, *server],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment(runtime),
                start_new_session=True,  # Ctrl-C in the terminal reaches this process only, which then stops the server
            )

    def _command(self, runtime: Path, backends: Path, shm_prefix: str) -> list[str]:
        selection = ["--model-control-mode=explicit", *(f"--load-model={name}" for name in self.models)]
        return [
            str(tritonserver(runtime)),
            f"--model-repository={self.repository}",
            f"--backend-directory={backends}",
            f"--cache-directory={runtime / 'pytriton' / 'tritonserver' / 'caches'}",
            f"--backend-config=python,shm-region-prefix-name={shm_prefix}",
            f"--http-port={self.ports.http}",
            f"--grpc-port={self.ports.grpc}",
            f"--metrics-port={self.ports.metrics}",
            "--http-address=127.0.0.1",
            "--grpc-address=127.0.0.1",
            "--metrics-address=127.0.0.1",
            f"--exit-timeout-secs={EXIT_TIMEOUT_S}",
            *([f"--model-config-name={self.config_name}"] if self.config_name else []),
            *(selection if self.models else []),
            *self.arguments,
        ]

    def _wait_until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_timeout_s
        url = f"http://{self.http_url}/v2/health/ready"
        while time.monotonic() < deadline:
            if self._guard is None or self._guard.poll() is not None:
                raise ServerFailed(f"The embedded Triton did not start: {error_lines(self.log)}")
            if _answers_ready(url):
                return
            time.sleep(0.05)
        reason = error_lines(self.log)
        raise ServerFailed(f"The embedded Triton was not ready within {self.ready_timeout_s:.0f} s: {reason}")


def _runtime() -> Path:
    runtime = default_runtime().resolve()
    if not is_provisioned(runtime):
        raise NotSupported(
            f"The Triton runtime is not in {runtime}: run `make setup`, or "
            f"`python -m tritonbatch.server.provision {runtime}`, or point to one with TRITONBATCH_RUNTIME."
        )
    return runtime


def _check_repository(repository: Path, models: Sequence[str]) -> None:
    if not repository.is_dir():
        raise InvalidInput(f"No model repository at {repository}: expected a folder; run `tritonbatch export` first.")
    present = sorted(path.name for path in repository.iterdir() if path.is_dir() and not path.name.startswith("."))
    if missing := [name for name in models if name not in present]:
        raise InvalidInput(f"No model {missing[0]!r} in {repository}: it holds {', '.join(present) or 'nothing'}.")


def _answers_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:  # noqa: S310 - an http URL built above
            return bool(response.status == 200)
    except (urllib.error.URLError, HTTPException, OSError):  # in a lost race for a port, another server answers
        return False
