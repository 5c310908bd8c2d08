"""A classifier of handwritten digits (8 by 8 pixels), trained here in about a second with a fixed seed.

Small enough that the server's own overhead per execution is most of the cost.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tritonbatch.models.model import Arrays, Model, TensorSpec
from tritonbatch.models.seeded import linear

PIXELS = 64
CLASSES = 10
_HIDDEN = 64
_SEED = 7
_HELD_OUT = 450
_STEPS = 200

Digits = tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]


class DigitClassifier(torch.nn.Module):
    """Pixels [batch, 64], each 0 to 16, to logits [batch, 10]."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(
            linear(PIXELS, _HIDDEN, generator), torch.nn.ReLU(), linear(_HIDDEN, CLASSES, generator)
        )

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Scale the pixels inside the model, so that clients send them as they are."""
        logits: torch.Tensor = self.layers(pixels / 16.0)
        return logits


def build() -> Model:
    """Input ``pixels`` [batch, 64] FP32 in 0 to 16, output ``logits`` [batch, 10] FP32."""
    return Model(
        name="digits",
        module=_trained(),
        inputs=(TensorSpec("pixels", "TYPE_FP32", (PIXELS,)),),
        outputs=(TensorSpec("logits", "TYPE_FP32", (CLASSES,)),),
        sample=_sample,
        purpose="so small that the cost of an execution is the server's own",
    )


def held_out() -> Digits:
    """The digits that training never saw: pixels [450, 64] and labels [450]."""
    pixels, labels = _shuffled_digits()
    return pixels[:_HELD_OUT], labels[:_HELD_OUT]


def training_set() -> Digits:
    """The other digits: pixels [1347, 64] and labels [1347]."""
    pixels, labels = _shuffled_digits()
    return pixels[_HELD_OUT:], labels[_HELD_OUT:]


def _sample(batch: int, rng: np.random.Generator) -> Arrays:
    pixels, _ = held_out()
    return {"pixels": pixels[rng.integers(len(pixels), size=batch)]}


@cache
def _shuffled_digits() -> Digits:
    from sklearn.datasets import load_digits  # noqa: PLC0415 - a second of imports

    data: Any = load_digits()
    order = np.random.default_rng(_SEED).permutation(len(data.target))
    return data.data[order].astype(np.float32), data.target[order].astype(np.int64)


def _trained() -> DigitClassifier:
    pixels, labels = (torch.from_numpy(array) for array in training_set())
    with one_thread(), torch.enable_grad():
        module = DigitClassifier(torch.Generator().manual_seed(_SEED))
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01, weight_decay=1e-4)
        for _ in range(_STEPS):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(module(pixels), labels).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return module.eval()


@contextmanager
def one_thread() -> Iterator[None]:
    """Train with one thread, so that every machine gets the same weights."""
    # Sums split over another number of threads round differently, and the weights would differ between machines.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
