"""The GPUs of this machine, as nvidia-smi tells; none is an answer, not an error."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GpuInHand:
    """A GPU of this machine."""

    name: str
    memory_mib: int


def gpus_in_hand() -> tuple[GpuInHand, ...]:
    """The GPUs here, in Triton's order; empty where there is no GPU, no driver or no nvidia-smi."""
    command = shutil.which("nvidia-smi")
    if command is None:
        return ()
    query = [command, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return parse_gpus(text)


def parse_gpus(text: str) -> tuple[GpuInHand, ...]:
    """What nvidia-smi printed, one ``name, memory`` for each line; lines that are not so are passed over."""
    found = []
    for line in text.splitlines():
        name, _, memory = line.rpartition(",")
        # A GPU in MIG mode, or one that fails, shows a word in brackets instead of a number.
        if name.strip() and memory.strip().isdigit():
            found.append(GpuInHand(name.strip(), int(memory)))
    return tuple(found)
