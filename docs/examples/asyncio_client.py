"""Fifty requests at once from one event loop: python asyncio_client.py HOST:PORT [MODEL]."""

import asyncio
import sys

import numpy as np

from tritonbatch.client import AsyncClient
from tritonbatch.client.tensors import random_inputs


async def main(url: str, model: str) -> None:
    """Send them, and one that is cancelled."""
    async with AsyncClient(url) as client:
        metadata = await client.metadata(model)
        inputs = [random_inputs(metadata, 1, np.random.default_rng(number)) for number in range(50)]
        answers = await asyncio.gather(*[client.infer(model, each) for each in inputs])
        print(f"{len(answers)} answers, outputs {', '.join(answers[0])}")
        unwanted = asyncio.create_task(client.infer(model, inputs[0]))
        unwanted.cancel()
        await asyncio.wait([unwanted])
        print(f"cancelled: {unwanted.cancelled()}")


asyncio.run(main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "linear"))
