"""A small convolutional classifier of images of 3 by 32 by 32, trained here for a few seconds with a fixed seed.

It learns the handwritten digits of scikit-learn, enlarged to 32 by 32 in each colour. Convolutions reuse each weight at
every place of the image, so arithmetic grows with the batch while the weights (0.4 MB) stay in the cache.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from tritonbatch.models.digits import held_out, one_thread, training_set
from tritonbatch.models.model import Arrays, Model, TensorSpec
from tritonbatch.models.seeded import convolution, linear

SHAPE = (3, 32, 32)
CLASSES = 10
_SEED = 11
_STEPS = 60
_BATCH = 64


class ConvolutionalClassifier(torch.nn.Module):
    """Images [batch, 3, 32, 32], each value 0 to 1, to logits [batch, 10]."""

    def __init__(self, generator: torch.Generator) -> None:
        super().__init__()
        layers: list[torch.nn.Module] = []
        channels = (SHAPE[0], 16, 32, 64)
        for inputs, outputs in pairwise(channels):
            layers += [convolution(inputs, outputs, generator), torch.nn.ReLU(), torch.nn.MaxPool2d(2)]
        self.features = torch.nn.Sequential(*layers)
        self.head = linear(channels[-1] * 4 * 4, CLASSES, generator)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """Three times convolve, rectify and halve, then one linear layer."""
        logits: torch.Tensor = self.head(self.features(image).flatten(1))
        return logits


def build() -> Model:
    """Input ``image`` [batch, 3, 32, 32] FP32 in 0 to 1, output ``logits`` [batch, 10] FP32."""
    return Model(
        name="convnet",
        module=_trained(),
        inputs=(TensorSpec("image", "TYPE_FP32", SHAPE),),
        outputs=(TensorSpec("logits", "TYPE_FP32", (CLASSES,)),),
        sample=_sample,
        purpose="convolutions: arithmetic grows with the batch, weights are small",
    )


def images(pixels: np.ndarray) -> np.ndarray:
    """Digits [batch, 64] of 0 to 16 as images [batch, 3, 32, 32] of 0 to 1: each pixel four by four, in each colour."""
    square = pixels.reshape(-1, 1, 8, 8) / np.float32(16)
    large = square.repeat(4, axis=2).repeat(4, axis=3)
    return np.ascontiguousarray(np.broadcast_to(large, (len(large), *SHAPE)), dtype=np.float32)


def _sample(batch: int, rng: np.random.Generator) -> Arrays:
    pixels, _ = held_out()
    return {"image": images(pixels[rng.integers(len(pixels), size=batch)])}


def _trained() -> ConvolutionalClassifier:
    pixels, labels = training_set()
    order = np.random.default_rng(_SEED)
    with one_thread(), torch.enable_grad():
        module = ConvolutionalClassifier(torch.Generator().manual_seed(_SEED))
        optimizer = torch.optim.Adam(module.parameters(), lr=0.003)
        for _ in range(_STEPS):
            rows = order.integers(len(pixels), size=_BATCH)
            optimizer.zero_grad()
            loss = torch.nn.functional.cross_entropy(
                module(torch.from_numpy(images(pixels[rows]))), torch.from_numpy(labels[rows])
            )
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
    return module.eval()
