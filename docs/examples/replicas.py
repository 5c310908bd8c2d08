"""Several servers, deadlines, retries and hedging: python replicas.py HOST:PORT [MODEL]; give your own list of urls."""

import sys

import numpy as np

from tritonbatch.client import Client, InvalidRequest, Overloaded, Retry, TimedOut, TryAgain
from tritonbatch.client.tensors import random_inputs

model = sys.argv[2] if len(sys.argv) > 2 else "linear"
urls = [sys.argv[1], "localhost:1"]  # nothing listens at the second one: it rests, and requests go to the first
with Client(urls, timeout_s=5.0, retry=Retry(attempts=4, hedge_after_s=0.5)) as client:
    inputs = random_inputs(client.metadata(model), 1, np.random.default_rng(0))
    for timeout_s in (None, 1e-6):
        try:
            print(f"answered: {', '.join(client.infer(model, inputs, timeout_s=timeout_s))}")
        except TimedOut as error:
            print(f"give up, or give more time: {error}")
        except TryAgain as error:
            print(f"nothing is wrong with the request, all attempts failed: {error}")
        except Overloaded as error:
            print(f"send less, or wait: {error}")
        except InvalidRequest as error:
            print(f"fix the input: {error}")
