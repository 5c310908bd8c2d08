"""Two kinds of traffic apart: an interactive and a bulk model over the same weights.

Both are models of their own, so a queue of bulk requests never stands before an interactive one; what they still share
is the device. With ``--rate-limit=execution_count`` they take turns on it, the interactive model more often.
"""

from __future__ import annotations

from tritonclient.grpc.model_config_pb2 import ModelConfig

from tritonbatch.repository.config import copied
from tritonbatch.repository.settings import rate_limited
from tritonbatch.repository.variants import offline, online

BULK_SUFFIX = "_bulk"
RESOURCE = "device"
BULK_PRIORITY = 4


def bulk_name(model: str) -> str:
    """The name of the bulk model of *model*."""
    return f"{model}{BULK_SUFFIX}"


def interactive(config: ModelConfig) -> ModelConfig:
    """The interactive half: online, with every turn on the device that it asks for."""
    return rate_limited(online(config), {RESOURCE: 1})


def bulk(config: ModelConfig) -> ModelConfig:
    """The bulk half, under its own name: offline, and one turn where the interactive half gets four."""
    changed = copied(config)
    changed.name = bulk_name(config.name)
    return rate_limited(offline(changed), {RESOURCE: 1}, priority=BULK_PRIORITY)
