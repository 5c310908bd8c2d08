"""The memory of a job does not grow with its input."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tritonbatch.server import EmbeddedServer

pytestmark = pytest.mark.triton

DIMS = 4096
"""Of the model `wide`."""
FEW, MANY = 1024, 7168
"""Two parts with a full row group of results, 16 MiB, and seven times that."""
GROWTH_BYTES = (MANY - FEW) * DIMS * 4
TIMEOUT_S = 60
# A process of its own for each job, and its own peak: ru_maxrss would begin at what the parent had.
MEASURED = """
import json, sys
from pathlib import Path
from tritonbatch.offline import Server, plan, run

source, output, url = sys.argv[1:]
server = Server((url,))
with server.client() as client:
    job, sample = plan(client, Path(source), Path(output), "wide", 8)
summary = run(job, sample, server)
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(json.dumps([summary.rows, summary.errors, int(status["VmHWM"].split()[0]) * 1024]))
"""


def write(path: Path, rows: int) -> None:
    """An input of *rows* rows; Parquet in a single row group, which is the hardest to stream."""
    x = np.random.default_rng(3).random((rows, DIMS), np.float32)
    if path.suffix == ".npy":
        np.save(path, x)
    else:
        column = pa.FixedSizeListArray.from_arrays(pa.array(x.reshape(-1)), DIMS)
        pq.write_table(pa.table({"x": column}), path, row_group_size=rows, compression="none")


def most_bytes(source: Path, output: Path, server: EmbeddedServer, rows: int) -> int:
    """Do the job and return the most memory that it had."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURED, str(source), str(output), server.http_url],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    answered, errors, most = json.loads(done.stdout)
    assert (answered, errors) == (rows, 0)
    return int(most)


@pytest.mark.parametrize(("source", "output"), [(".npy", ".parquet"), (".parquet", ".npy")])
def test_seven_times_the_input_takes_no_more_memory(
    own_server: EmbeddedServer, tmp_path: Path, source: str, output: str
) -> None:
    """From 16 MiB to 112 MiB the job's peak grows by less than two thirds of that: it holds a part, not the input."""
    peaks = []
    for rows in (FEW, MANY):
        write(tmp_path / f"x{source}", rows)
        peaks.append(most_bytes(tmp_path / f"x{source}", tmp_path / f"y{output}", own_server, rows))
    print(f"{source} to {output}: {peaks[0] >> 20} MiB, {peaks[1] >> 20} MiB")
    assert peaks[1] - peaks[0] < GROWTH_BYTES * 2 / 3
