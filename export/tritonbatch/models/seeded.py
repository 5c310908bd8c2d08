"""Layers with reproducible random weights that leave torch's global random state alone."""

from __future__ import annotations

import torch


def linear(inputs: int, outputs: int, generator: torch.Generator) -> torch.nn.Linear:
    """A layer [batch, inputs] → [batch, outputs] to use before a ReLU: He-uniform weights, biases of zero."""
    # Made without memory first, since the usual constructor draws from the global state.
    layer = torch.nn.Linear(inputs, outputs, device="meta").to_empty(device="cpu")
    torch.nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    torch.nn.init.zeros_(layer.bias)
    return layer
