"""What a workload was before it was updated: kept while instances run it, and for whoever wants to go back."""

from roost.core.state.state import State
from roost.model.limits import VERSIONS_MAX
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload

REACH_MAX = 1_000  # how far back a version may be that is still run by somebody


def save_version(state: State, workload: Workload) -> None:
    """Remember a workload as it is, before it becomes something else; the oldest versions that nobody runs go."""
    key = version_key(workload, workload.version)
    state.versions[key] = workload
    state.dirty["version", key] = workload
    numbers = versions_of(state, workload)
    if len(numbers) > VERSIONS_MAX:
        used = {instance.version for instance in instances_of(state, workload)} | {workload.version}
        used |= {workload.rollout.before} if workload.rollout else set()
        for number in sorted(set(numbers) - used)[: len(numbers) - VERSIONS_MAX]:
            forget_version(state, workload, number)


def versions_of(state: State, workload: Workload) -> list[int]:
    """The versions before the present one that are known, the newest first."""
    last = max(workload.version - REACH_MAX, 0)
    return [index for index in range(workload.version, last, -1) if version_key(workload, index) in state.versions]


def version_of(state: State, workload: Workload, number: int) -> Workload | None:
    """A workload as it is or was at a version; None: nobody knows any more."""
    return workload if number == workload.version else state.versions.get(version_key(workload, number))


def forget_version(state: State, workload: Workload, number: int) -> None:
    """Nobody runs it and nobody goes back to it."""
    key = version_key(workload, number)
    del state.versions[key]
    state.dirty["version", key] = None


def version_key(workload: Workload, number: int) -> str:
    """PROJECT/NAME@VERSION"""
    return f"{workload.key}@{number}"


def shrink(state: State, workload: Workload) -> None:
    """The last of those beyond the count are gone: their indexes are free again."""
    progress = state.progress_of(workload)
    while (
        progress.placed_count > workload.count and f"{workload.key}.{progress.placed_count - 1}" not in state.instances
    ):
        progress.placed_count -= 1


def instances_of(state: State, workload: Workload) -> list[Instance]:
    """All that have a record, by index; those beyond its count are extra or on their way out."""
    find, key = state.instances.get, workload.key
    return [
        instance for index in range(state.placed_count(workload)) if (instance := find(f"{key}.{index}")) is not None
    ]


def make_instance(state: State, workload: Workload, index: int, reason: Reason, now: int) -> Instance:
    """An instance with a record, in the queue."""
    instance = state.new_instance(workload, index, reason, now)
    instance.since_ms, instance.reason = now, reason
    state.touch_instance(instance)
    state.queue.add_requeued(workload, index)
    return instance
