"""Run a server and never outlive the process that asked for it; a script that `embedded.py` starts.

    guard.py EXIT_TIMEOUT_S SHM_PREFIX FOLDER COMMAND…

The guard's standard input is a pipe whose other end the parent holds. When the parent closes it, or dies in whatever
way (Ctrl-C, kill -9), the guard sees the end of file, asks the server to stop, and after EXIT_TIMEOUT_S makes it.
Then it sweeps the server's process group (the Python stubs), its shared memory and FOLDER. It uses the standard library
only, so that it starts in milliseconds.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PR_SET_PDEATHSIG = 1


def main(exit_timeout_s: float, shm_prefix: str, folder: str, command: list[str]) -> int:
    """Run *command* until it exits or standard input ends; return its exit code."""
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_stop_with_guard)  # noqa: PLW1509 - this process has one thread
    try:
        _wait_for_exit_or_end_of_input(server.pid)
        if server.poll() is None:
            _stop(server, exit_timeout_s)
            # Only when it was told to end: after a server's own death the parent still reads the log in there.
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        _sweep(server.pid, shm_prefix)
    return server.returncode


def _stop_with_guard() -> None:
    # Should the guard itself be killed outright, the kernel still asks the server to stop.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_for_exit_or_end_of_input(pid: int) -> None:
    child = os.pidfd_open(pid)
    while True:
        ready, _, _ = select.select([0, child], [], [])
        if child in ready or not os.read(0, 1024):
            return


def _stop(server: subprocess.Popen[bytes], exit_timeout_s: float) -> None:
    server.terminate()
    try:
        server.wait(exit_timeout_s)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _sweep(group: int, shm_prefix: str) -> None:
    with contextlib.suppress(ProcessLookupError):  # the usual case: the server's stubs ended with it
        os.killpg(group, signal.SIGKILL)
    for region in Path("/dev/shm").glob(f"{shm_prefix}*"):  # noqa: S108 - where POSIX shared memory lives
        region.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]))
