"""Earlier versions of workloads, kept while instances run them and for rollbacks; and the instances of a workload."""

from roost.core.state.files import count_workload_files
from roost.core.state.state import State
from roost.model.limits import VERSIONS_MAX
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload

REACH_MAX = 1_000  # how far back the version of a running instance may be


def save_version(state: State, workload: Workload) -> None:
    """Store a workload before it is updated; the oldest versions without instances are dropped."""
    key = version_key(workload, workload.version)
    state.versions[key] = workload
    count_workload_files(state, workload, 1)
    state.dirty["version", key] = workload
    numbers = versions_of(state, workload)
    if len(numbers) > VERSIONS_MAX:
        used = {instance.version for instance in instances_of(state, workload)} | {workload.version}
        used |= {workload.rollout.before} if workload.rollout else set()
        for number in sorted(set(numbers) - used)[: len(numbers) - VERSIONS_MAX]:
            forget_version(state, workload, number)


def versions_of(state: State, workload: Workload) -> list[int]:
    last = max(workload.version - REACH_MAX, 0)
    return [index for index in range(workload.version, last, -1) if version_key(workload, index) in state.versions]


def version_of(state: State, workload: Workload, number: int) -> Workload | None:
    return workload if number == workload.version else state.versions.get(version_key(workload, number))


def forget_version(state: State, workload: Workload, number: int) -> None:
    key = version_key(workload, number)
    count_workload_files(state, state.versions.pop(key), -1)
    state.dirty["version", key] = None


def version_key(workload: Workload, number: int) -> str:
    return f"{workload.key}@{number}"


def shrink(state: State, workload: Workload) -> None:
    """Free the last indexes beyond the count that have no record."""
    progress = state.progress_of(workload)
    while (
        progress.placed_count > workload.count and f"{workload.key}.{progress.placed_count - 1}" not in state.instances
    ):
        progress.placed_count -= 1


def instances_of(state: State, workload: Workload) -> list[Instance]:
    """All instances with a record, by index; those beyond the count are surge replicas or are being retired."""
    find, key = state.instances.get, workload.key
    return [
        instance for index in range(state.placed_count(workload)) if (instance := find(f"{key}.{index}")) is not None
    ]


def make_instance(state: State, workload: Workload, index: int, reason: Reason, now: int) -> Instance:
    instance = state.new_instance(workload, index, reason, now)
    instance.since_ms, instance.reason = now, reason
    state.touch_instance(instance)
    state.queue.add_requeued(workload, index)
    return instance
