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


def convolution(inputs: int, outputs: int, generator: torch.Generator) -> torch.nn.Conv2d:
    """A 3 by 3 convolution that keeps the size, to use before a ReLU: He-uniform weights, biases of zero."""
    layer = torch.nn.Conv2d(inputs, outputs, 3, padding=1, device="meta").to_empty(device="cpu")
    torch.nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu", generator=generator)
    if layer.bias is not None:
        torch.nn.init.zeros_(layer.bias)
    return layer
