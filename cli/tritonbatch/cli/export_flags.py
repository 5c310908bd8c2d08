"""The flags of ``tritonbatch export``, by what they are about: each a type with its help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer


def _variants(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Variants", **options)


def _devices(*names: str, **options: Any) -> Any:
    return typer.Option(*names, rich_help_panel="Devices", **options)


Spec = Annotated[
    list[str],
    typer.Argument(
        help="digits, convnet, ranking_mlp, minilm, minilm_dynamic, decoder_step; package.module:factory of your own; "
        "a .onnx, TorchScript .pt or ExportedProgram .pt2 file."
    ),
]
Input = Annotated[
    list[str] | None,
    typer.Option(help="An input of a plain module or .pt file, repeated: NAME:TYPE:DIMS, as image:FP32:3x32x32."),
]
Output = Annotated[list[str] | None, typer.Option(help="An output's name for such a model, repeated in order.")]
Repository = Annotated[Path, typer.Option(help="The model repository to write to.")]
Name = Annotated[str | None, typer.Option(help="Name in the repository; the model's or the file's by default.")]
Keep = Annotated[
    int | None,
    typer.Option(help="Add a version when the model changed and keep this many; else version 1 is replaced."),
]
MaxBatch = Annotated[
    int | None, typer.Option(help="Largest batch that will be verified and served; 64, or with --gpu what suits it.")
]

Variant = Annotated[
    list[str] | None,
    _variants(
        help="A variant to write, repeated: serial, static, static-32 (any B), dynamic, online, offline, priority, "
        "two-instances. serial, static and dynamic by default."
    ),
]
StaticBatch = Annotated[int | None, _variants(help="Batch of the static variant; half the maximum.")]
Preferred = Annotated[
    list[int] | None, _variants(help="Preferred batch size of the dynamic variant; repeat for several.")
]
QueueDelay = Annotated[int, _variants(help="Longest wait of a request for its batch, in µs.")]
MaxQueue = Annotated[int, _variants(help="Refuse requests above this many in the batcher's queue.")]
QueueTimeout = Annotated[int, _variants(help="Refuse requests that queue longer, in µs.")]
PriorityLevels = Annotated[int | None, _variants(help="Levels of the priority variant; 2.")]
Level = Annotated[
    list[str] | None,
    _variants(help="Queue of one level, repeated: 1:timeout-us=200000,action=reject,max-queue=100."),
]
WarmUp = Annotated[bool, _variants("--warm-up", help="Run every size once before ready.")]
Cache = Annotated[bool, _variants("--cache", help="Cache responses; the server needs --cache-config=local,size=BYTES.")]
SloMs = Annotated[
    float | None,
    _variants(
        help="Also write configs/DEFAULT-slo.pbtxt with first-response buckets around it: for Triton 2.52 or later, "
        "which so far fills them for decoupled models only."
    ),
]

InstanceCount = Annotated[int | None, _devices(help="Instances of the model; 1, or with --gpu what suits it.")]
Threads = Annotated[int, _devices(help="Threads of one instance within an operator.")]
OnGpu = Annotated[bool, _devices("--gpu", help="Write KIND_GPU instead of KIND_CPU.")]
Gpus = Annotated[str | None, _devices(help="As --gpu, on these only: 0,1.")]
RowMib = Annotated[float, _devices(help="Activations of one row, for the batch that fits into the GPU here.")]
ForGpu = Annotated[
    list[str] | None, _devices(help="Also write configs/GPU.pbtxt with the defaults of that GPU, repeated: L4.")
]
