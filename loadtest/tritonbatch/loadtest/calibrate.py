"""Measure t(B) of a served model for a few batch sizes, one request at a time, from the server's own counters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

from tritonbatch.client import Client, ServerError
from tritonbatch.client.counters import executions_between

REPEATS = 12


def service_times(
    client: Client, model: str, batches: Mapping[int, Mapping[str, npt.NDArray[Any]]]
) -> dict[int, float]:
    """t(B) in milliseconds for the inputs in *batches*, by their number of rows.

    Raises:
        ServerError: the server counted no execution of a size that it answered.
    """
    requests = {size: client.request(model, inputs) for size, inputs in batches.items()}
    for request in requests.values():  # the first executions of a size are never typical
        client.send(request)
    before = client.settled_statistics(model)
    for request in requests.values():
        for _ in range(REPEATS):
            client.send(request)
    seen = {e.batch_size: e.occupancy_ms for e in executions_between(before, client.settled_statistics(model))}
    if missing := [size for size in requests if size not in seen]:
        raise ServerError(f"{client.url} counted no execution of {missing[0]} rows of {model}; expected {REPEATS}.")
    return {size: seen[size] for size in requests}
