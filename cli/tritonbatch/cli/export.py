"""``tritonbatch export``: a model in, a verified version and its configuration variants out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console

from tritonbatch.cli import export_flags as flags
from tritonbatch.cli.batching import Batching, check_batching, stem, write_configurations
from tritonbatch.cli.batching_flags import gpu_numbers, priority_of
from tritonbatch.cli.options import DEFAULT_REPOSITORY
from tritonbatch.cli.steps import Steps
from tritonbatch.errors import InvalidInput
from tritonbatch.export.build import FILE_SUFFIXES, build_spec
from tritonbatch.export.difference import Difference
from tritonbatch.export.record import Built
from tritonbatch.models.given import Given, parse_given
from tritonbatch.repository.catalogue import STANDARD
from tritonbatch.repository.config import Instances, read_config
from tritonbatch.repository.gpu_in_hand import gpus_in_hand
from tritonbatch.repository.gpus import MIB, Defaults, defaults_for
from tritonbatch.repository.priority import QueuePolicy
from tritonbatch.repository.variants import DynamicBatching
from tritonbatch.repository.versions import check_only_version_1, publish, versions

__all__ = ["Batching", "default_name", "export", "export_one"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What goes into a version beside the spec.

    With *keep* a changed model becomes a new version and that many of the newest stay; without, version 1 is replaced.
    *given* names the tensors of a model that does not say them itself.
    """

    keep: int | None = None
    given: Given = Given()  # noqa: RUF009 - frozen


PLAIN = Source()


def export(
    spec: flags.Spec,
    *,
    repository: flags.Repository = DEFAULT_REPOSITORY,
    name: flags.Name = None,
    input: flags.Input = None,  # noqa: A002 - it is the flag's name
    output: flags.Output = None,
    keep: flags.Keep = None,
    max_batch_size: flags.MaxBatch = None,
    variant: flags.Variant = None,
    static_batch: flags.StaticBatch = None,
    preferred: flags.Preferred = None,
    queue_delay_us: flags.QueueDelay = 0,
    max_queue: flags.MaxQueue = 0,
    queue_timeout_us: flags.QueueTimeout = 0,
    priority_levels: flags.PriorityLevels = None,
    level: flags.Level = None,
    warm_up: flags.WarmUp = False,
    cache: flags.Cache = False,
    slo_ms: flags.SloMs = None,
    instances: flags.InstanceCount = None,
    threads: flags.Threads = 1,
    gpu: flags.OnGpu = False,
    gpus: flags.Gpus = None,
    row_mib: flags.RowMib = 0.0,
    for_gpu: flags.ForGpu = None,
) -> None:
    """Turn models into ONNX, verify them, and write the variants serial, static and dynamic, or those asked for.

    A model is written only after its ONNX file was run: the batch axis is dynamic on every tensor, the results equal
    torch's at several batch sizes, and a row does not depend on its neighbours. Nothing is rebuilt that did not change.

    Examples:
    [bold]tritonbatch export my_package.models:ranker --preferred 8 --preferred 16 --queue-delay-us 2000[/]

    [bold]tritonbatch export scripted.pt --input features:FP32:512 --output scores[/]

    [bold]tritonbatch export ranker.onnx --keep 3 --variant online --variant static-32 --warm-up[/]

    [bold]tritonbatch export resnet50.onnx --gpus 0,1 --for-gpu L4 --for-gpu H100[/]
    """
    on = gpu_numbers(gpus)
    kind = "KIND_GPU" if gpu or on else "KIND_CPU"
    begin = _defaults(spec, kind, row_mib, max_batch_size)
    count = begin.instances if instances is None else instances
    batching = Batching(
        max_batch_size=begin.max_batch_size,
        static_batch=begin.static_batch if static_batch is None else static_batch,
        dynamic=DynamicBatching(preferred_batch_sizes=tuple(preferred or ()), max_queue_delay_us=queue_delay_us),
        instances=Instances(count=count, kind=kind, intra_op_threads=threads),
        variants=tuple(variant or STANDARD),
        priority=priority_of(priority_levels, level or ()),
        queue=QueuePolicy(timeout_us=queue_timeout_us, max_queue_size=max_queue),
        cache=cache,
        warm_up=warm_up,
        gpus=on,
        for_gpus=tuple(key.upper() for key in for_gpu or ()),
        slo_ms=slo_ms,
    )
    _export_each(spec, repository, name, batching, Source(keep=keep, given=parse_given(input or (), output or ())))


def _export_each(specs: Sequence[str], repository: Path, name: str | None, batching: Batching, source: Source) -> None:
    if name and len(specs) > 1:
        raise InvalidInput(f"--name is {name!r} for {len(specs)} models: expected one model; export them one by one.")
    console = Console()
    with Steps(console) as steps:
        reports = [
            export_one(each, repository, name, batching, lambda what: steps(what, 0, 1), source=source)
            for each in specs
        ]
    for report in reports:
        console.print(report, markup=False, highlight=False, soft_wrap=True)


def _defaults(specs: Sequence[str], kind: str, row_mib: float, max_batch_size: int | None) -> Defaults:
    """Where to begin: at *max_batch_size* if it is given, else at what suits the first GPU here, or a CPU."""
    found = gpus_in_hand()[:1] if kind == "KIND_GPU" and max_batch_size is None else ()
    if not found:
        usual = defaults_for("", 0, 0, 0)
        largest = usual.max_batch_size if max_batch_size is None else max_batch_size
        return replace(usual, max_batch_size=largest, static_batch=max(largest // 2, 1))
    sizes = [Path(each).stat().st_size for each in specs if each.endswith(".onnx") and Path(each).is_file()]
    begin = defaults_for(found[0].name, found[0].memory_mib, int(row_mib * MIB), max(sizes, default=0))
    Console().print(f"Begin at batches of {begin.max_batch_size} ({begin.reason}).", markup=False, highlight=False)
    return begin


def export_one(
    spec: str,
    repository: Path,
    name: str | None,
    batching: Batching,
    progress: Callable[[str], None],
    *,
    source: Source = PLAIN,
) -> str:
    """Export one model and write its variants; return what was done in a few words.

    *source* says what is given about the model beside its spec, and whether versions are kept.

    Raises:
        InvalidInput: the spec names no model, or a batching setting is out of range (before anything is built).
        ExportRejected: the model failed its verification; nothing was written.
    """
    chosen = name or default_name(spec)
    check_batching(chosen, batching)
    directory = repository / chosen

    def step(what: str) -> None:
        progress(f"export {chosen}: {what}")

    def build(folder: Path, version: int) -> Built:
        return build_spec(
            spec, folder, max_batch_size=batching.max_batch_size, version=version, given=source.given, progress=step
        )

    before = _tensors(directory)
    if source.keep is None:
        check_only_version_1(directory)
        built, version = build(directory, 1), 1
    else:
        built, version = _publish(directory, source.keep, build)
    changed = write_configurations(directory, stem(chosen, built.inputs, built.outputs, batching), batching)
    lines = [_summary(chosen, built, changed)]
    if differing := [what for what, now in _tensors(directory).items() if before and now != before[what]]:
        verb = "replaces version 1 of" if source.keep is None else f"version {version} differs from the former of"
        lines.append(f"{verb} {chosen} ({' and '.join(differing)} changed); config.pbtxt.bak is the former one")
    if source.keep is not None:
        lines.append(f"version {version} is served; kept: {', '.join(map(str, versions(directory)))}")
    return "\n  ".join(lines)


def _tensors(model_directory: Path) -> dict[str, list[tuple[str, int, tuple[int, ...]]]]:
    """What the model in place takes and answers, by its configuration; nothing when there is none, or it is broken."""
    try:
        config = read_config(model_directory / "config.pbtxt")
    except InvalidInput:
        return {}  # the export writes it anew
    return {
        what: sorted((tensor.name, tensor.data_type, tuple(tensor.dims)) for tensor in tensors)
        for what, tensors in (("inputs", config.input), ("outputs", config.output))
    }


def _publish(directory: Path, keep: int, build: Callable[[Path, int], Built]) -> tuple[Built, int]:
    results: list[Built] = []

    def rebuilt(folder: Path, version: int) -> bool:
        results.append(build(folder, version))
        return results[-1].rebuilt

    version = publish(directory, keep, rebuilt)
    return results[-1], version


def default_name(spec: str) -> str:
    """The model's name in the repository when none is given: the built-in's, the function's, or the file's stem."""
    return Path(spec).stem if spec.endswith(FILE_SUFFIXES) else spec.rpartition(":")[2]


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
