"""The engine as a shell script for the container whose TensorRT matches the server's. Pure text."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable

from tritonbatch.engine.settings import PLAN_FILE, EngineSettings, Profile

SCRIPT_FILE = "build_engine.sh"
DEFAULT_TAG = "25.10-py3"


def trtexec_script(settings: EngineSettings, tag: str = DEFAULT_TAG) -> str:
    """A bash script that builds the engine with trtexec in its own folder, and writes what it was built on beside it.

    *tag* is the serving image's, and so the build image's: an engine belongs to one version of TensorRT.
    """
    image = f"nvcr.io/nvidia/tensorrt:{tag}"
    arguments = " \\\n    ".join(['${typed[@]+"${typed[@]}"}', *(shlex.quote(each) for each in arguments_of(settings))])
    record = shlex.quote(json.dumps(settings.as_record()))
    return f"""#!/usr/bin/env bash
# Builds {PLAN_FILE} from {settings.onnx_file}. The TensorRT that builds must be the one that serves, so run it in the
# image of the same release as the server, on the kind of GPU that serves:
#   docker run --rm --gpus all -v "$PWD":/model -w /model {shlex.quote(image)} bash {SCRIPT_FILE}
set -euo pipefail
cd "$(dirname "${{BASH_SOURCE[0]}}")"
trtexec=${{TRTEXEC:-trtexec}}
if ! command -v "$trtexec" >/dev/null; then
    echo "error: there is no $trtexec here; run this script in the container, as its first lines say" >&2
    exit 2
fi
help=$("$trtexec" --help 2>&1 || true)
# TensorRT 10 takes the types of the graph only when it is told to; from 11 on it always does and may not know the flag.
typed=()
if [[ $help == *--stronglyTyped* ]]; then typed=(--stronglyTyped); fi
partial=$(mktemp {PLAN_FILE}.XXXXXX)
trap 'rm -f "$partial"' EXIT
"$trtexec" --saveEngine="$partial" \\
    {arguments}
gpu=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null | head -n 1 || true)
version=$(grep -o 'TensorRT v[0-9]*' <<<"$help" | head -n 1 || true)
chmod 644 "$partial"
mv "$partial" {PLAN_FILE}
printf '{{"gpu": "%s", "tensorrt": "%s", "settings": %s}}\\n' "$gpu" "$version" {record} >{PLAN_FILE}.json
echo "wrote {PLAN_FILE} for $gpu with $version"
"""


def arguments_of(settings: EngineSettings) -> tuple[str, ...]:
    """The arguments for trtexec, unquoted, without the place of the engine."""
    portable = []
    if settings.version_compatible:
        portable.append("--versionCompatible")
    if settings.hardware_compatible:
        portable.append("--hardwareCompatibilityLevel=ampere+")
    return (
        f"--onnx={settings.onnx_file}",
        f"--minShapes={_shapes(settings, lambda profile: profile.smallest)}",
        f"--optShapes={_shapes(settings, lambda profile: profile.usual)}",
        f"--maxShapes={_shapes(settings, lambda profile: profile.largest)}",
        f"--memPoolSize=workspace:{settings.workspace_mib}",
        f"--timingCacheFile={settings.timing_cache}",
        "--skipInference",
        *portable,
    )


def _shapes(settings: EngineSettings, pick: Callable[[Profile], tuple[int, ...]]) -> str:
    # trtexec ends a name at the first colon unless it stands in single quotes.
    return ",".join(
        f"{_named(profile.name)}:{'x'.join(str(size) for size in pick(profile))}" for profile in settings.profiles
    )


def _named(name: str) -> str:
    return f"'{name}'" if ":" in name else name
