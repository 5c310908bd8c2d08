"""``tritonbatch export``: a model in, a verified version and its configuration variants out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.cli.options import DEFAULT_REPOSITORY
from tritonbatch.cli.steps import Steps
from tritonbatch.errors import InvalidInput
from tritonbatch.export.build import build_spec
from tritonbatch.export.difference import Difference
from tritonbatch.export.record import Built
from tritonbatch.repository.config import Instances, onnx_config
from tritonbatch.repository.layout import write_variants
from tritonbatch.repository.variants import DynamicBatching, standard_variants

DEFAULT_MAX_BATCH = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Batching:
    """Everything about batching that an export writes into the variants."""

    max_batch_size: int
    static_batch: int
    dynamic: DynamicBatching = DynamicBatching()  # noqa: RUF009 - frozen
    instances: Instances = Instances()  # noqa: RUF009 - frozen


def export(
    spec: Annotated[
        list[str],
        typer.Argument(help="digits, ranking_mlp, minilm; package.module:factory of your own; or a .onnx file."),
    ],
    repository: Annotated[Path, typer.Option(help="The model repository to write to.")] = DEFAULT_REPOSITORY,
    name: Annotated[
        str | None, typer.Option(help="Name in the repository; the model's or the file's by default.")
    ] = None,
    max_batch_size: Annotated[
        int, typer.Option(help="Largest batch that will be verified and served.")
    ] = DEFAULT_MAX_BATCH,
    static_batch: Annotated[int | None, typer.Option(help="Batch of the static variant; half the maximum.")] = None,
    preferred: Annotated[
        list[int] | None, typer.Option(help="Preferred batch size of the dynamic variant; repeat for several.")
    ] = None,
    queue_delay_us: Annotated[int, typer.Option(help="Longest wait of a request for its batch, in µs.")] = 0,
    instances: Annotated[int, typer.Option(help="Instances of the model.")] = 1,
    threads: Annotated[int, typer.Option(help="Threads of one instance within an operator.")] = 1,
    gpu: Annotated[bool, typer.Option("--gpu", help="Write KIND_GPU instead of KIND_CPU.")] = False,  # noqa: FBT002
) -> None:
    """Turn models into ONNX, verify them, and write the variants serial, static and dynamic.

    A model is written only after its ONNX file was run: the batch axis is dynamic on every tensor, the results equal
    torch's at several batch sizes, and a row does not depend on its neighbours. Nothing is rebuilt that did not change.

    Examples:
    [bold]tritonbatch export ranking_mlp --max-batch-size 64 --static-batch 32[/]

    [bold]tritonbatch export my_package.models:ranker --preferred 8 --preferred 16 --queue-delay-us 2000[/]

    [bold]tritonbatch export resnet50.onnx --name resnet50 --gpu[/]
    """
    if name and len(spec) > 1:
        raise InvalidInput(f"--name is {name!r} for {len(spec)} models: expected one model; export them one by one.")
    batching = Batching(
        max_batch_size=max_batch_size,
        static_batch=static_batch or max(max_batch_size // 2, 1),
        dynamic=DynamicBatching(preferred_batch_sizes=tuple(preferred or ()), max_queue_delay_us=queue_delay_us),
        instances=Instances(count=instances, kind="KIND_GPU" if gpu else "KIND_CPU", intra_op_threads=threads),
    )
    console = Console()
    with Steps(console) as steps:
        reports = [export_one(each, repository, name, batching, lambda what: steps(what, 0, 1)) for each in spec]
    for report in reports:
        console.print(report, markup=False, highlight=False, soft_wrap=True)


def export_one(
    spec: str, repository: Path, name: str | None, batching: Batching, progress: Callable[[str], None]
) -> str:
    """Export one model and write its variants; return what was done in a few words.

    Raises:
        InvalidInput: the spec names no model, or a batching setting is out of range (before anything is built).
        ExportRejected: the model failed its verification; nothing was written.
    """
    chosen = name or default_name(spec)
    check_batching(chosen, batching)
    directory = repository / chosen

    def step(what: str) -> None:
        progress(f"export {chosen}: {what}")

    built = build_spec(spec, directory, max_batch_size=batching.max_batch_size, progress=step)
    config = _config(chosen, built, batching)
    changed = write_variants(directory, standard_variants(config, batching.static_batch, batching.dynamic))
    return _summary(chosen, built, changed)


def default_name(spec: str) -> str:
    """The model's name in the repository when none is given: the built-in's, the function's, or the file's stem."""
    return Path(spec).stem if spec.endswith(".onnx") else spec.rpartition(":")[2]


def check_batching(name: str, batching: Batching) -> None:
    """Refuse settings that no server would load, before minutes are spent on the export."""
    stem = onnx_config(name, (), (), max_batch_size=batching.max_batch_size, instances=batching.instances)
    standard_variants(stem, batching.static_batch, batching.dynamic)


def _config(name: str, built: Built, batching: Batching) -> ModelConfig:
    return onnx_config(
        name, built.inputs, built.outputs, max_batch_size=batching.max_batch_size, instances=batching.instances
    )


def _summary(name: str, built: Built, changed: Sequence[Path]) -> str:
    checked = built.verification
    verb = "exported and verified" if built.rebuilt else "unchanged, verified earlier"
    lines = [f"{name}: {verb} ({built.seconds:.1f} s)"]
    if checked.parity:
        sizes = ", ".join(str(each.batch) for each in checked.parity)
        lines.append(f"parity with torch at batch {sizes}: {_largest(checked.parity)}")
    lines.append(f"rows alone and in a batch: {_largest([checked.invariance])}")
    if changed:
        lines.append(f"wrote {', '.join(path.name for path in changed)}")
    return "\n  ".join(lines)


def _largest(differences: Sequence[Difference]) -> str:
    absolute = max(each.absolute for each in differences)
    relative = max(each.relative for each in differences)
    return f"largest difference {absolute:.1e} absolute, {relative:.1e} relative"
