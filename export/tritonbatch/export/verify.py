"""Whether a written ONNX file computes what its torch module computes, at every batch size, and each row by itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tritonbatch.errors import ExportRejected
from tritonbatch.export.difference import Difference, Outputs, compare, tolerance
from tritonbatch.export.session import Session
from tritonbatch.export.torch_exporter import essence, module_arguments
from tritonbatch.models.model import Arrays, Model

Sample = Callable[[int, np.random.Generator], Arrays]
"""Rows for a batch size, as ``Model.sample``."""

_PARITY_BATCHES = (1, 2, 8)
_PARITY_SEED = 1
_INVARIANCE_SEED = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What was compared before a version was accepted.

    *parity* is the file against torch, one entry for each batch size (none for a file that came without a module);
    *invariance* is the rows of a batch against the same rows alone and in reverse order. *tolerances* gives atol and
    rtol of each output by name.
    """

    max_batch_size: int
    parity: tuple[Difference, ...]
    invariance: Difference
    tolerances: dict[str, tuple[float, float]]


def verify(path: Path, sample: Sample, max_batch_size: int, model: Model | None = None) -> Verification:
    """Run the ONNX file at *path* on rows from *sample*, and compare with the module of *model* if there is one.

    Without a model, the batch sizes are run all the same, so a file that fails at one of them is rejected.

    Raises:
        ExportRejected: Names the output that differs, what was got, what was expected and what to do.
    """
    session = Session(path)
    parity = []
    for batch in sorted({size for size in _PARITY_BATCHES if size < max_batch_size} | {max_batch_size}):
        rows = sample(batch, np.random.default_rng([_PARITY_SEED, batch]))
        # Torch first: a module that is wrong at this size says so more clearly than a difference does.
        expected = None if model is None else _run_torch(model, rows, batch)
        got = session.run(rows, batch)
        if expected is not None and model is not None:
            parity.append(compare(got, expected, f"differs from torch at batch {batch}", _advice(model)))
    rows = sample(min(8, max(2, max_batch_size)), np.random.default_rng(_INVARIANCE_SEED))
    invariance, tolerances = _invariance(session, rows)
    return Verification(
        max_batch_size=max_batch_size, parity=tuple(parity), invariance=invariance, tolerances=tolerances
    )


def _run_torch(model: Model, rows: Arrays, batch: int) -> Outputs:
    import torch  # noqa: PLC0415

    try:
        with torch.no_grad():
            result = model.module(*module_arguments(model, rows))
    except Exception as error:
        raise ExportRejected(
            f"the module of model {model.name!r} fails at batch {batch}: {essence(error)}; expected it to run at every "
            f"batch size; {_advice(model)}"
        ) from error
    if isinstance(result, torch.Tensor):
        result = (result,)
    tensors = list(result.values()) if isinstance(result, Mapping) else list(result)
    names = [spec.name for spec in model.outputs]
    return {name: tensor.cpu().numpy() for name, tensor in zip(names, tensors, strict=True)}


def _advice(model: Model) -> str:
    if any(module.training for module in model.module.modules()):
        return "the module is in training mode, where BatchNorm and Dropout act differently: call .eval() on it"
    return "correct the module, or replace the operation that the exporter gets wrong"


def _invariance(session: Session, rows: Arrays) -> tuple[Difference, dict[str, tuple[float, float]]]:
    batch = len(next(iter(rows.values())))
    together = session.run(rows, batch)
    alone = [session.run({name: array[i : i + 1] for name, array in rows.items()}, 1) for i in range(batch)]
    joined = {name: np.concatenate([outputs[name] for outputs in alone]) for name in together}
    reverse = session.run({name: array[::-1].copy() for name, array in rows.items()}, batch)
    reversed_back = {name: array[::-1] for name, array in reverse.items()}

    fault = f"depends on the other rows of its batch of {batch}"
    advice = (
        "remove what mixes rows, such as BatchNorm in training mode or a softmax, norm or cumulative sum over axis 0, "
        "since a server joins the requests of strangers"
    )
    differences = [compare(together, joined, fault, advice), compare(together, reversed_back, fault, advice)]
    worst = Difference(batch, max(d.absolute for d in differences), max(d.relative for d in differences))
    return worst, {name: tolerance(array) for name, array in together.items()}
