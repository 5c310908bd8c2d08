"""Get the real Triton without Docker: the wheel `nvidia-pytriton` carries tritonserver 2.51.0 and its Python backend.

It is unpacked into a folder of its own, never installed into the environment, so its pins (numpy < 2) bind nobody.
Run as a script, ``python -m tritonbatch.server.provision DIRECTORY`` does just that.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tritonbatch.errors import NotSupported, TritonbatchError

RUNTIME = "nvidia-pytriton==0.7.0"
TRITON_VERSION = "2.51.0"
OTHERWISE = "use the Docker image (see docker-compose.yml) or a Triton that runs elsewhere (--url HOST:PORT)"


def check_machine() -> None:
    """Check that the wheel's binaries can run here.

    Raises:
        NotSupported: not Linux on x86-64 with glibc 2.35 or later, or a Python without a stub.
    """
    system, machine = platform.system(), platform.machine()
    if (system, machine) != ("Linux", "x86_64"):
        raise NotSupported(f"The embedded Triton needs Linux on x86_64, this is {system} on {machine}: {OTHERWISE}.")
    library, version = platform.libc_ver()
    if library != "glibc" or tuple(map(int, version.split("."))) < (2, 35):
        found = f"{library} {version}".strip() or "no glibc"
        raise NotSupported(f"The embedded Triton needs glibc 2.35 or later, this system has {found}: {OTHERWISE}.")
    if not (3, 8) <= sys.version_info[:2] <= (3, 13):
        python = platform.python_version()
        raise NotSupported(f"The embedded Triton's stubs are for Python 3.8 to 3.13, this is {python}: {OTHERWISE}.")


def default_runtime() -> Path:
    """Where the runtime is: ``$TRITONBATCH_RUNTIME``, or `.triton` in the working folder, or beside the environment."""
    if named := os.environ.get("TRITONBATCH_RUNTIME"):
        return Path(named)
    here = Path.cwd() / ".triton"
    in_environment = sys.prefix != sys.base_prefix
    return here if here.exists() or not in_environment else Path(sys.prefix).parent / ".triton"


def is_provisioned(runtime: Path) -> bool:
    """Whether *runtime* holds a tritonserver."""
    return tritonserver(runtime).is_file()


def tritonserver(runtime: Path) -> Path:
    """The server's binary inside *runtime*."""
    return runtime / "pytriton" / "tritonserver" / "bin" / "tritonserver"


def provision(runtime: Path) -> None:
    """Download and unpack the runtime into *runtime* (55 MB down, 144 MB on disk), whole or not at all.

    Raises:
        NotSupported: this machine cannot run it.
        TritonbatchError: the download failed; the message holds the installer's last line.
    """
    check_machine()
    runtime = runtime.resolve()
    runtime.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{runtime.name}-", dir=runtime.parent) as temporary:
        unpacked = Path(temporary) / "runtime"
        command = [*_installer(), "--no-deps", "--target", str(unpacked), RUNTIME]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            reason = (result.stderr.strip().splitlines() or ["no output"])[-1]
            raise TritonbatchError(
                f"Could not download {RUNTIME} ({reason}); check the network and the package index, then run again."
            )
        if runtime.exists():
            shutil.rmtree(runtime)
        unpacked.rename(runtime)


def _installer() -> list[str]:
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    raise NotSupported(f"Neither pip nor uv is here to download {RUNTIME}: install pip into this environment.")


if __name__ == "__main__":
    try:
        provision(Path(sys.argv[1]))
    except TritonbatchError as error:
        sys.exit(str(error))
