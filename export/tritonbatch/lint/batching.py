"""Rules about the dynamic batcher: sizes, delay, priorities and queue policies."""

from __future__ import annotations

from collections.abc import Iterator

from tritonclient.grpc.model_config_pb2 import ModelConfig, ModelDynamicBatching, ModelQueuePolicy

from tritonbatch.lint.finding import Problem, error, warning
from tritonbatch.lint.subject import Subject

BATCHING = "dynamic_batching"
LONG_DELAY_US = 1_000_000
SHORT_TIMEOUT_US = 1_000


def _batcher(subject: Subject) -> ModelDynamicBatching | None:
    return subject.config.dynamic_batching if subject.config.HasField(BATCHING) else None


def _policies(batcher: ModelDynamicBatching) -> Iterator[tuple[str, ModelQueuePolicy]]:
    """Every queue policy with its path."""
    yield f"{BATCHING}.default_queue_policy", batcher.default_queue_policy
    for level in sorted(batcher.priority_queue_policy):
        yield f"{BATCHING}.priority_queue_policy[{level}]", batcher.priority_queue_policy[level]


def _not_positive(subject: Subject) -> Iterator[Problem]:
    for index, size in enumerate(subject.config.dynamic_batching.preferred_batch_size):
        if size <= 0:
            message = f"preferred batch size {size} is not positive, expected 1 to max_batch_size"
            yield Problem(f"{BATCHING}.preferred_batch_size[{index}]", message, f"remove {size}")


def _over_max(subject: Subject) -> Iterator[Problem]:
    largest = subject.config.max_batch_size
    for index, size in enumerate(subject.config.dynamic_batching.preferred_batch_size):
        if size > largest > 0:
            message = f"preferred batch size {size} is over max_batch_size {largest}, expected 1 to {largest}"
            fix = f"remove {size}, or max_batch_size: {size} if the model has the memory for it"
            yield Problem(f"{BATCHING}.preferred_batch_size[{index}]", message, fix)


def _without_batch_axis(subject: Subject) -> Iterator[Problem]:
    sizes = list(subject.config.dynamic_batching.preferred_batch_size)
    if subject.config.max_batch_size == 0 and any(size > 0 for size in sizes):
        message = f"preferred batch sizes {sizes} with max_batch_size 0, which means no batching, expected it above 0"
        fix = f"max_batch_size: {max(sizes)} when the model has a batch axis, else remove dynamic_batching"
        yield Problem(f"{BATCHING}.preferred_batch_size", message, fix)


def _keep_valid_sizes(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001 - the signature of a repair
    sizes = config.dynamic_batching.preferred_batch_size
    sizes[:] = sorted({size for size in sizes if 0 < size <= config.max_batch_size})


def _unsorted(subject: Subject) -> Iterator[Problem]:
    sizes = list(subject.config.dynamic_batching.preferred_batch_size)
    wanted = sorted(set(sizes))
    if sizes != wanted:
        message = f"preferred batch sizes are {sizes}, expected each once and ascending, as Triton takes them"
        yield Problem(f"{BATCHING}.preferred_batch_size", message, f"preferred_batch_size: {wanted}")


def _sort_sizes(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    sizes = config.dynamic_batching.preferred_batch_size
    sizes[:] = sorted(set(sizes))


def _no_batching(subject: Subject) -> Iterator[Problem]:
    batcher, largest = _batcher(subject), subject.config.max_batch_size
    if batcher is not None and largest in (0, 1) and not any(batcher.preferred_batch_size[:]):
        message = f"dynamic_batching with max_batch_size {largest} never batches, expected max_batch_size of 2 or more"
        fix = "max_batch_size: 8 when the model has a batch axis, else remove dynamic_batching"
        yield Problem(BATCHING, message, fix)


def _default_level(subject: Subject) -> Iterator[Problem]:
    batcher = subject.config.dynamic_batching
    levels, default = batcher.priority_levels, batcher.default_priority_level
    if levels and not 1 <= default <= levels:
        message = f"default_priority_level is {default} with {levels} levels, expected 1 (highest) to {levels}"
        yield Problem(f"{BATCHING}.default_priority_level", message, f"default_priority_level: {levels}")


def _set_default_level(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    config.dynamic_batching.default_priority_level = config.dynamic_batching.priority_levels


def _policy_level(subject: Subject) -> Iterator[Problem]:
    batcher = subject.config.dynamic_batching
    levels = batcher.priority_levels
    for level in sorted(batcher.priority_queue_policy):
        if levels and not 1 <= level <= levels:
            message = f"a queue policy is for level {level} of {levels}, expected 1 to {levels}"
            fix = f"correct the key, or priority_levels: {level}" if level else "correct the key"
            yield Problem(f"{BATCHING}.priority_queue_policy[{level}]", message, fix)


def _drop_policies(subject: Subject, config: ModelConfig) -> None:  # noqa: ARG001
    batcher = config.dynamic_batching
    for level in list(batcher.priority_queue_policy):
        if not 1 <= level <= batcher.priority_levels:
            del batcher.priority_queue_policy[level]


def _levels_unset(subject: Subject) -> Iterator[Problem]:
    batcher = subject.config.dynamic_batching
    ignored = {
        "priority_queue_policy": bool(batcher.priority_queue_policy),
        "default_priority_level": bool(batcher.default_priority_level),
    }
    for name, is_set in ignored.items():
        if is_set and not batcher.priority_levels:
            message = f"{name} is ignored without priority_levels, expected both or none"
            yield Problem(f"{BATCHING}.{name}", message, "priority_levels: 2, or as many as callers use; or remove it")


def _ordering_with_levels(subject: Subject) -> Iterator[Problem]:
    batcher = subject.config.dynamic_batching
    if batcher.preserve_ordering and batcher.priority_levels > 1:
        message = f"preserve_ordering with {batcher.priority_levels} priority levels, expected at most one level"
        yield Problem(f"{BATCHING}.preserve_ordering", message, "remove preserve_ordering or priority_levels")


def _ordering_with_delay(subject: Subject) -> Iterator[Problem]:
    batcher = subject.config.dynamic_batching
    for path, policy in _policies(batcher):
        late = policy.timeout_action == ModelQueuePolicy.DELAY and policy.default_timeout_microseconds
        if batcher.preserve_ordering and late:
            message = "timeout_action DELAY reorders requests, which preserve_ordering forbids, expected REJECT"
            yield Problem(f"{path}.timeout_action", message, "timeout_action: REJECT, or remove preserve_ordering")


def _timeout(subject: Subject) -> Iterator[Problem]:
    for path, policy in _policies(subject.config.dynamic_batching):
        if timeout := policy.default_timeout_microseconds:
            message = (
                f"a queue timeout of {timeout} µs is set; throughput was reported to decay over minutes with any"
                " (triton-inference-server/server#8870, #7512), expected none, or one proven by a soak test"
            )
            fix = "run a soak test of 30 minutes, or set max_queue_size instead"
            yield Problem(f"{path}.default_timeout_microseconds", message, fix)


def _timeout_short(subject: Subject) -> Iterator[Problem]:
    delay = subject.config.dynamic_batching.max_queue_delay_microseconds
    shortest = max(SHORT_TIMEOUT_US, delay, subject.deadline_us // 10)
    for path, policy in _policies(subject.config.dynamic_batching):
        if 0 < (timeout := policy.default_timeout_microseconds) < shortest:
            message = (
                f"the queue timeout {timeout} µs fails requests that could be answered, expected {shortest} µs or more"
            )
            yield Problem(f"{path}.default_timeout_microseconds", message, f"default_timeout_microseconds: {shortest}")


def _override_useless(subject: Subject) -> Iterator[Problem]:
    for path, policy in _policies(subject.config.dynamic_batching):
        if policy.allow_timeout_override and not policy.default_timeout_microseconds:
            message = "a request's timeout can only shorten the default one, and there is none, expected a default"
            yield Problem(
                f"{path}.allow_timeout_override", message, "default_timeout_microseconds: 1000000, or remove it"
            )


def _delay_long(subject: Subject) -> Iterator[Problem]:
    delay = subject.config.dynamic_batching.max_queue_delay_microseconds
    limit = subject.deadline_us or LONG_DELAY_US
    if delay >= limit:
        what = "the callers' deadline" if subject.deadline_us else "a second"
        message = (
            f"the queue delay {delay} µs reaches {what}; a lone request waits all of it, expected below {limit} µs"
        )
        yield Problem(
            f"{BATCHING}.max_queue_delay_microseconds", message, "max_queue_delay_microseconds: 0, or measure it"
        )


RULES = (
    error("preferred-not-positive", "A preferred batch size is 0 or less.", _not_positive, _keep_valid_sizes),
    error("preferred-over-max", "A preferred batch size is over max_batch_size.", _over_max, _keep_valid_sizes),
    error(
        "preferred-without-batch-axis",
        "Preferred batch sizes with max_batch_size 0; checked before any default is filled in.",
        _without_batch_axis,
        _keep_valid_sizes,
    ),
    error(
        "default-priority",
        "default_priority_level is not within 1 to priority_levels.",
        _default_level,
        _set_default_level,
    ),
    error(
        "priority-policy-level",
        "A queue policy is for a level outside 1 to priority_levels.",
        _policy_level,
        _drop_policies,
    ),
    error("ordering-with-priorities", "preserve_ordering with more than one priority level.", _ordering_with_levels),
    error("ordering-with-delay", "preserve_ordering with a queue policy that delays.", _ordering_with_delay),
    warning("preferred-unsorted", "Preferred batch sizes are repeated or not ascending.", _unsorted, _sort_sizes),
    warning("no-batching", "dynamic_batching with max_batch_size 0 or 1 loads and never batches.", _no_batching),
    warning("priority-levels-unset", "Priority settings without priority_levels are ignored.", _levels_unset),
    warning("queue-timeout", "A queue timeout deserves a soak test (server#8870, #7512).", _timeout),
    warning(
        "queue-timeout-short",
        "A queue timeout below 1 ms, below the queue delay, or below a tenth of the callers' deadline.",
        _timeout_short,
    ),
    warning(
        "timeout-override-useless", "allow_timeout_override without a default timeout does nothing.", _override_useless
    ),
    warning("delay-long", "The queue delay reaches the callers' deadline, or a second.", _delay_long),
)
