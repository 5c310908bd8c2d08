"""Send rows through memory that the server shares: python shared_memory.py HOST:PORT [MODEL]."""

import sys

import numpy as np

from tritonbatch.client import Client
from tritonbatch.client.shared_memory import SharedMemory

model = sys.argv[2] if len(sys.argv) > 2 else "linear"
rng = np.random.default_rng(0)
with Client(sys.argv[1]) as client:
    rows = client.contract(model).max_batch_size or 1
    with SharedMemory(client, model, rows=rows) as memory:
        for count in (rows, 1):
            for array in memory.inputs.values():
                array[:count] = rng.random(array[:count].shape)  # written where the server reads it
            for name, array in memory.infer(rows=count).items():
                print(f"{name}: {array.dtype} of shape {array.shape}, first row {array[0]}")
