"""Where the time of one call goes: python timing.py HOST:PORT [MODEL]."""

import sys

import numpy as np

from tritonbatch.client import Client
from tritonbatch.client.tensors import random_inputs
from tritonbatch.client.timing import infer_timed

model = sys.argv[2] if len(sys.argv) > 2 else "linear"
with Client(sys.argv[1]) as client:
    inputs = random_inputs(client.metadata(model), 1, np.random.default_rng(0))
    for _ in range(3):
        outputs, timing = infer_timed(client, model, inputs)
        print(f"{', '.join(outputs)}: {timing}")
