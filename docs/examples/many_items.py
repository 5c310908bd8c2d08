"""More rows than one request may hold, split and put together in order: python many_items.py HOST:PORT [MODEL]."""

import sys

import numpy as np

from tritonbatch.client import Client
from tritonbatch.client.tensors import random_inputs

model = sys.argv[2] if len(sys.argv) > 2 else "linear"
with Client(sys.argv[1], protocol="http") as client:
    rows = random_inputs(client.metadata(model), 100, np.random.default_rng(0))
    for name, array in client.infer_many(model, rows, in_flight=4).items():
        print(f"{name}: shape {array.shape}")
    items = [{name: array[row] for name, array in rows.items()} for row in range(100)]
    print(f"{len(client.infer_many(model, items))} items, one result each")
