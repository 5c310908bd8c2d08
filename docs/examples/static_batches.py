"""Run 100 rows in fixed batches, one after another: python static_batches.py HOST:PORT [MODEL]."""

import logging
import sys

import numpy as np

from tritonbatch.client import Client, StaticBatcher
from tritonbatch.client.tensors import random_inputs

logging.basicConfig(level=logging.INFO)  # the batcher logs its plan before it starts
model = sys.argv[2] if len(sys.argv) > 2 else "linear"
with Client(sys.argv[1]) as client:
    batcher = StaticBatcher(client, model, batch_size=client.contract(model).max_batch_size)
    rows = random_inputs(client.metadata(model), 100, np.random.default_rng(0))
    print(f"planned: {batcher.plan(rows)}")
    for name, array in batcher.run(rows).items():
        print(f"{name}: {array.dtype} of shape {array.shape}, first row {array[0]}")
    items = ({name: array[row] for name, array in rows.items()} for row in range(10))
    print(f"streamed: {sum(1 for _ in batcher.stream(items))} items")
