"""What a model is to this project: a torch module, its tensors by name, and inputs that make sense to it.

Knows nothing about ONNX, Triton or batching policy. Shapes here exclude the batch axis, which is always axis 0
and always dynamic, as in config.pbtxt when max_batch_size > 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output: *dims* excludes the batch axis; *data_type* is Triton's name, such as ``TYPE_FP32``."""

    name: str
    data_type: str
    dims: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A torch module with everything that exporting and exercising it needs.

    *sample(batch, rng)* returns *batch* realistic rows for every input: keys are input names, each array has the
    batch on axis 0. *purpose* is one line on what the model shows.
    """

    name: str
    module: torch.nn.Module
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    sample: Callable[[int, np.random.Generator], Arrays]
    purpose: str
