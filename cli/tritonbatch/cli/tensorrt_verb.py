"""``tritonbatch tensorrt``: an engine for a model of the repository, built here, by a script, or by ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from tritonbatch.cli.options import DEFAULT_REPOSITORY
from tritonbatch.cli.steps import Steps
from tritonbatch.engine.prepare import Prepared, Wanted, build_here, write_accelerated, write_script
from tritonbatch.engine.settings import parse_free_sizes
from tritonbatch.engine.trtexec import DEFAULT_TAG
from tritonbatch.errors import InvalidInput


def tensorrt(
    model: Annotated[str, typer.Argument(help="The model's name in the repository.")],
    repository: Annotated[Path, typer.Option(help="The model repository.")] = DEFAULT_REPOSITORY,
    precision: Annotated[str, typer.Option(help="fp32, fp16, bf16, or int8 calibrated with samples.npz.")] = "fp16",
    script: Annotated[bool, typer.Option("--script", help="Write a trtexec script; needs no GPU.")] = False,  # noqa: FBT002
    onnxruntime: Annotated[  # noqa: FBT002
        bool, typer.Option("--onnxruntime", help="Let ONNX Runtime build engines when it loads; needs no GPU here.")
    ] = False,
    sizes: Annotated[
        list[str] | None,
        typer.Option(help="MIN,USUAL,MAX of free axes, or INPUT=MIN,USUAL,MAX of one input; repeat for several."),
    ] = None,
    usual_batch: Annotated[
        int | None, typer.Option(help="Batch to tune for; the largest preferred size or the maximum by default.")
    ] = None,
    workspace_mib: Annotated[int, typer.Option(help="GPU memory that the builder may try, in MiB.")] = 4096,
    cuda_graph: Annotated[
        list[int] | None, typer.Option(help="Capture a CUDA graph for this batch; repeat for several.")
    ] = None,
    version_compatible: Annotated[  # noqa: FBT002
        bool, typer.Option("--version-compatible", help="For later TensorRT of the same major version as well.")
    ] = False,
    hardware_compatible: Annotated[  # noqa: FBT002
        bool, typer.Option("--hardware-compatible", help="For every GPU from Ampere on; slower.")
    ] = False,
    tag: Annotated[str, typer.Option(help="Release of the serving image, which the script builds for.")] = DEFAULT_TAG,
) -> None:
    """Build a TensorRT engine for the batches that the configuration allows, and write the variant that serves it.

    Without --script or --onnxruntime the engine is built on the GPU of this machine. Its profile goes from 1 to
    max_batch_size.

    Examples:
    [bold]tritonbatch tensorrt ranking_mlp --precision fp16[/]

    [bold]tritonbatch tensorrt minilm_dynamic --sizes 8,32,128 --script --tag 25.10-py3[/]

    [bold]tritonbatch tensorrt convnet --precision int8 --onnxruntime[/]
    """
    if script and onnxruntime:
        raise InvalidInput("--script and --onnxruntime are two ways: expected one of them; run the verb once for each.")
    wanted = Wanted(
        precision=precision.lower(),
        usual_batch=usual_batch,
        workspace_mib=workspace_mib,
        version_compatible=version_compatible,
        hardware_compatible=hardware_compatible,
        graph_batches=tuple(cuda_graph or ()),
        tag=tag,
    )
    prepare = write_script if script else write_accelerated if onnxruntime else build_here
    console = Console()
    with Steps(console) as steps:
        prepared = prepare(repository, model, wanted, parse_free_sizes(sizes or ()), lambda what: steps(what, 0, 1))
    console.print(_summary(model, prepared, repository), markup=False, highlight=False, soft_wrap=True)


def _summary(model: str, prepared: Prepared, repository: Path) -> str:
    lines = [f"{model}: wrote {', '.join(str(path.relative_to(repository)) for path in prepared.files)}"]
    if prepared.deviation:
        lines.append(
            f"the graph differs from FP32 by {prepared.deviation:.1e} of its size, over the sample rows on a CPU"
        )
    lines.append(f"serve it with tritonserver --model-config-name={prepared.variant}")
    return "\n  ".join(lines)
