"""What a tritonserver needs around it before it starts: a backend directory, an environment, free ports."""

from __future__ import annotations

import os
import shutil
import socket
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from tritonbatch.errors import InvalidInput

PACKAGE = Path(__file__).parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The server's three TCP ports; 0 means any free one."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0


def assemble_backends(runtime: Path, folder: Path) -> Path:
    """Copy the Python backend, its stub for this Python, and our `onnxruntime` backend into one directory.

    Copies, not links: Triton refuses a backend library whose real path lies outside the backend directory.
    """
    source = runtime / "pytriton" / "tritonserver"
    minor = f"{sys.version_info.major}.{sys.version_info.minor}"
    shutil.copytree(source / "backends" / "python", folder / "python", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy2(source / "python_backend_stubs" / minor / "triton_python_backend_stub", folder / "python")
    shutil.copytree(PACKAGE / "backends" / "onnxruntime", folder / "onnxruntime")
    return folder


def environment(runtime: Path) -> dict[str, str]:
    """The stub takes its packages from the first python3 on PATH, and libpython from LD_LIBRARY_PATH."""
    libraries = f"{runtime / 'nvidia_pytriton.libs'}:{sysconfig.get_config_var('LIBDIR')}"
    inherited = os.environ.get("LD_LIBRARY_PATH")
    return {
        **os.environ,
        "LD_LIBRARY_PATH": f"{libraries}:{inherited}" if inherited else libraries,
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "PYTHONDONTWRITEBYTECODE": "1",  # the backend's folder may be read-only, and is never ours to litter
    }


def free_ports(wanted: Ports) -> Ports:
    """Fill the zeros of *wanted* with ports that are free now; check the others."""
    sockets = {name: socket.socket() for name in ("http", "grpc", "metrics")}
    try:
        for name, listener in sockets.items():
            port: int = getattr(wanted, name)
            # As Triton itself does: connections that linger after a killed server hold no port.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                listener.bind(("127.0.0.1", port))
            except OSError as error:
                flag = f"--{name}-port"
                raise InvalidInput(
                    f"Port {port} is taken ({error.strerror}): give another {flag}, or 0; a server that was stopped "
                    "just now can hold it for 10 s."
                ) from error
        return Ports(**{name: listener.getsockname()[1] for name, listener in sockets.items()})
    finally:
        for listener in sockets.values():
            listener.close()
