"""A ranking network: 512 features of a user and a query in, the scores of 64 candidates out.

Its 19 million FP32 weights (76 MB) are read once per execution whatever the batch is, so reading them takes longer
than the arithmetic: the case where batching pays most. The weights are random, with a fixed seed.
"""

from __future__ import annotations

import numpy as np
import torch

from tritonbatch.models.model import Arrays, Model, TensorSpec
from tritonbatch.models.seeded import linear

FEATURES = 512
HIDDEN = 4096
CANDIDATES = 64
_SEED = 20_240_513


def build() -> Model:
    """Input ``features`` [batch, 512] FP32, output ``scores`` [batch, 64] FP32."""
    generator = torch.Generator().manual_seed(_SEED)
    module = torch.nn.Sequential(
        linear(FEATURES, HIDDEN, generator),
        torch.nn.ReLU(),
        linear(HIDDEN, HIDDEN, generator),
        torch.nn.ReLU(),
        linear(HIDDEN, CANDIDATES, generator),
    )
    return Model(
        name="ranking_mlp",
        module=module.eval(),
        inputs=(TensorSpec("features", "TYPE_FP32", (FEATURES,)),),
        outputs=(TensorSpec("scores", "TYPE_FP32", (CANDIDATES,)),),
        sample=_sample,
        purpose="bound by reading weights: a batch of 8 costs little more than one row",
    )


def _sample(batch: int, rng: np.random.Generator) -> Arrays:
    # Features of a ranking model are normalised before they reach it.
    return {"features": rng.standard_normal((batch, FEATURES), dtype=np.float32)}
