"""The server's metrics as text, as readings, and as a file."""

from __future__ import annotations

import math
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tritonbatch.errors import InvalidInput
from tritonbatch.observe import pending
from tritonbatch.observe.pending import Readings, model_values, samples, sampling, write_readings

TEXT = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
# TYPE nv_inference_pending_request_count gauge
nv_inference_pending_request_count{model="m",version="1"} 3
nv_inference_pending_request_count{model="m",version="2"} 2
nv_inference_pending_request_count{model="other",version="1"} 9
nv_inference_request_success{model="m",version="1"} 12
nv_inference_request_failure{model="m",reason="REJECTED",version="1"} 4
nv_inference_request_failure{model="m",reason="OTHER",version="1"} 1
nv_cpu_utilization 0.5
nv_inference_count{model="m",version="1"} what
nv_energy_consumption{gpu_uuid="GPU-1"} 5.5e+02
nv_inference_count{model="a\\"b}\\\\ c",version="1"} 7
"""


def test_a_models_values_are_summed_over_its_versions() -> None:
    """Only the model's own samples count, failures by their reason; what cannot be read is left out."""
    assert model_values(TEXT, "m") == {"pending": 5, "success": 12, "failed_REJECTED": 4, "failed_OTHER": 1}
    assert model_values(TEXT, "missing") == {}
    assert model_values("<html>no metrics</html>", "m") == {}


def test_labels_hold_any_text() -> None:
    """Escaped quotes, braces and backslashes of a label are what they stand for."""
    assert model_values(TEXT, 'a"b}\\ c') == {"inferences": 7}
    assert ("nv_energy_consumption", {"gpu_uuid": "GPU-1"}, 550.0) in list(samples(TEXT))


def test_a_server_that_is_not_there_is_missed() -> None:
    """Nobody answers: the block goes on, no reading is taken, and the misses are counted."""
    with sampling("http://localhost:9/metrics", "m", interval_s=0.01) as readings:
        pass
    assert readings.missed > 0
    assert readings.time_ns == []
    assert len(readings.column("pending")) == 0


def test_the_readings_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """After so many readings no more are taken, and the readings say so."""
    monkeypatch.setattr(pending, "MOST_READINGS", 3)
    with sampling("http://localhost:9/metrics", "m", interval_s=0.001) as readings:
        for _ in range(500):
            if readings.full:
                break
            time.sleep(0.01)
    assert readings.full
    assert readings.missed == 3


def test_mistakes_are_named() -> None:
    """An interval that is none, and an address that is no URL."""
    with pytest.raises(InvalidInput, match="interval is 0"), sampling("http://localhost:9/metrics", "m", interval_s=0):
        pass
    with pytest.raises(InvalidInput, match="expected http"), sampling("localhost:8002", "m"):
        pass


def test_readings_are_written_as_columns(tmp_path: Path) -> None:
    """Times count from the start of the run; a metric that a reading lacks is NaN there."""
    readings = Readings(time_ns=[1100, 1200], values=[{"pending": 2.0}, {"pending": 3.0, "failed_REJECTED": 1.0}])
    write_readings(readings, tmp_path / "pending.parquet", start_ns=1000)
    table = pq.read_table(tmp_path / "pending.parquet")
    assert table.column("time_ns").to_pylist() == [100, 200]
    assert table.column("pending").to_pylist() == [2.0, 3.0]
    rejected = table.column("failed_REJECTED").to_numpy()
    assert math.isnan(rejected[0])
    assert np.array_equal(rejected[1:], [1.0])
