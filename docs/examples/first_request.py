"""Ask what a model takes, send it a batch, then a single item: python first_request.py HOST:PORT [MODEL]."""

import sys

import numpy as np

from tritonbatch.client import Client
from tritonbatch.client.tensors import random_inputs

model = sys.argv[2] if len(sys.argv) > 2 else "linear"
with Client(sys.argv[1]) as client:
    contract = client.contract(model)
    for tensor in contract.inputs.values():
        print(f"{model} takes {tensor.name}: {tensor.datatype} of shape {tensor.shape}")
    batch = random_inputs(client.metadata(model), 4, np.random.default_rng(0))
    for name, array in client.infer(model, batch).items():
        print(f"{name}: {array.dtype} of shape {array.shape}")
    item = {name: array[0] for name, array in batch.items()}
    for name, array in client.infer(model, item, add_batch_axis=True).items():
        print(f"{name} of one item: shape {array.shape}")
