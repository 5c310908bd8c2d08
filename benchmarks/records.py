"""Time and memory of folding many records into a latency histogram.

    python benchmarks/records.py [--records 10000000] [--files 4]

Writes the files of that many workers into a temporary folder, then folds them in a process of its own, whose peak
memory is that of the fold and of the imports before it.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from tritonbatch.loadtest.records import OK, Records, write_records
from tritonbatch.observe.histogram import latency_histogram


def write_files(folder: Path, records: int, files: int) -> None:
    """Records of *files* workers at some 100,000 per second, with log-normal latencies of 3 ms in the median."""
    rng = np.random.default_rng(1)
    intended_ns = np.cumsum(rng.integers(0, 20_000, records))
    for worker in range(files):
        each = Records("run", "model", "dynamic", intended_ns[worker::files])
        each.sequence = np.arange(worker, records, files)
        each.worker[:] = worker
        each.sent_ns = each.intended_ns + rng.integers(5_000, 200_000, len(each))
        each.done_ns = each.sent_ns + rng.lognormal(15, 0.5, len(each)).astype(np.int64)
        each.status[:] = np.where(rng.random(len(each)) < 0.999, OK, OK + 1)
        write_records(each, folder / f"records-{worker}.parquet")


def peak_memory_kb() -> int:
    """The most memory that this program had; ru_maxrss would start from that of the process which started it."""
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    return int(found.group(1)) if found else 0


def fold(folder: Path) -> None:
    """Fold the files of *folder* and print what it took."""
    before_kb = peak_memory_kb()
    start = time.perf_counter()
    found = latency_histogram(folder)
    seconds = time.perf_counter() - start
    peak_kb = peak_memory_kb()
    print(f"folded {found.count:,} latencies in {seconds:.2f} s")
    print(f"peak memory {peak_kb / 1024:.0f} MB, of which {before_kb / 1024:.0f} MB before the first record")
    print(", ".join(f"p{100 * q:g} {found.quantile_ms(q):.3f} ms" for q in (0.5, 0.95, 0.99, 0.999, 1)))


def main() -> None:
    """Write, then fold in another process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=10_000_000)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--fold", type=Path, help="fold this folder and end")
    options = parser.parse_args()
    if options.fold:
        fold(options.fold)
        return
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        write_files(Path(folder), options.records, options.files)
        size_mb = sum(path.stat().st_size for path in Path(folder).iterdir()) / 1e6
        seconds = time.perf_counter() - start
        print(f"wrote {options.records:,} records in {options.files} files, {size_mb:.0f} MB, {seconds:.1f} s")
        subprocess.run([sys.executable, __file__, "--fold", folder], check=True, timeout=600)


if __name__ == "__main__":
    main()
