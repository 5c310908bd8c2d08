"""Let 64 threads that bring one row each share requests: python micro_batcher.py HOST:PORT [MODEL]."""

import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tritonbatch.client import Client, MicroBatcher
from tritonbatch.client.tensors import random_inputs

model = sys.argv[2] if len(sys.argv) > 2 else "linear"
with Client(sys.argv[1]) as client:
    metadata, max_rows = client.metadata(model), client.contract(model).max_batch_size
    rows = [random_inputs(metadata, 1, np.random.default_rng(number)) for number in range(64)]
    before = client.settled_statistics(model).inference_stats.success.count
    with (
        MicroBatcher(client, model, max_rows=max_rows, max_delay_s=0.005) as batcher,
        ThreadPoolExecutor(64) as threads,
    ):
        answers = list(threads.map(batcher.infer, rows))
    requests = client.settled_statistics(model).inference_stats.success.count - before
    print(f"{len(answers)} callers, {requests} requests; the first caller got {answers[0]}")
