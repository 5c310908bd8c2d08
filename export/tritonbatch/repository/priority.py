"""Queue policies and priority levels: who waits how long, and who goes to the head of the next batch.

Level 1 is the highest. Order is strict, so a busy level 1 starves level 2; a batch that runs is never interrupted.
Any limit here, or more than one level, also keeps Triton from forming batches ahead while every instance is busy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelQueuePolicy

from tritonbatch.errors import InvalidInput
from tritonbatch.repository.config import copied
from tritonbatch.repository.variants import DynamicBatching, dynamic

ACTIONS = ("REJECT", "DELAY")


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuePolicy:
    """How long and how many may queue; 0 is no limit.

    After *timeout_us* in the queue a request is refused (REJECT) or put behind all others of its level for good
    (DELAY). A client can shorten the timeout if *allow_timeout_override*, never lengthen it. Above *max_queue_size*
    a request is refused at once, which the client meets as ``Overloaded``.
    """

    timeout_us: int = 0
    timeout_action: str = "REJECT"
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Priority:
    """*levels* of priority, 1 the highest; requests without one get *default_level* (0 stands for the lowest).

    *policies* are by level; a level without one has *default_policy*.
    """

    levels: int = 2
    default_level: int = 0
    policies: Mapping[int, QueuePolicy] = field(default_factory=dict)
    default_policy: QueuePolicy = QueuePolicy()


def priority(config: ModelConfig, batching: DynamicBatching, settings: Priority) -> ModelConfig:
    """*config* with the dynamic batcher and the priority levels of *settings*.

    Raises:
        InvalidInput: a level out of range, or a policy that would do nothing.
    """
    _check_levels(settings)
    changed = dynamic(config, batching)
    batcher = changed.dynamic_batching
    batcher.priority_levels = settings.levels
    batcher.default_priority_level = settings.default_level or settings.levels
    for level, policy in sorted(settings.policies.items()):
        batcher.priority_queue_policy[level].CopyFrom(_message(policy, f"level {level}"))
    if settings.default_policy != QueuePolicy():
        return queue_policy(changed, settings.default_policy)
    return changed


def queue_policy(config: ModelConfig, policy: QueuePolicy) -> ModelConfig:
    """*config* with *policy* for every level that has none of its own.

    Raises:
        InvalidInput: there is no dynamic batcher, so no queue that would obey it, or the policy would do nothing.
    """
    if not config.HasField("dynamic_batching"):
        raise InvalidInput(
            f"A queue policy for {config.name} without dynamic_batching: expected the dynamic batcher, whose queue it "
            "rules; put the policy on dynamic, online or priority."
        )
    changed = copied(config)
    changed.dynamic_batching.default_queue_policy.CopyFrom(_message(policy, "the default"))
    return changed


def _check_levels(settings: Priority) -> None:
    if settings.levels < 2:
        raise InvalidInput(f"The priority levels are {settings.levels}: expected 2 or more, or there is no order.")
    for what, level in (("default level", settings.default_level or 1), *(("policy", n) for n in settings.policies)):
        if not 1 <= level <= settings.levels:
            raise InvalidInput(f"The {what} is for priority level {level}: expected 1 to {settings.levels}.")


def _message(policy: QueuePolicy, where: str) -> ModelQueuePolicy:
    if policy.timeout_action not in ACTIONS:
        raise InvalidInput(f"The timeout action of {where} is {policy.timeout_action!r}: expected REJECT or DELAY.")
    for what, number in (("queue timeout", policy.timeout_us), ("queue size", policy.max_queue_size)):
        if number < 0:
            raise InvalidInput(f"The {what} of {where} is {number}: expected 0 (no limit) or more.")
    if not policy.timeout_us and (policy.allow_timeout_override or policy.timeout_action == "DELAY"):
        # Triton takes an override only below a default, and DELAY only after one, so without it both do nothing.
        raise InvalidInput(f"The queue policy of {where} has no timeout: expected one, or neither DELAY nor override.")
    return ModelQueuePolicy(
        timeout_action=ModelQueuePolicy.TimeoutAction.Value(policy.timeout_action),
        default_timeout_microseconds=policy.timeout_us,
        allow_timeout_override=policy.allow_timeout_override,
        max_queue_size=policy.max_queue_size,
    )
