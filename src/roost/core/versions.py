"""What a workload was before it was updated: kept while instances run it, and for whoever wants to go back."""

from roost.core.state import State
from roost.model.instance import Instance
from roost.model.limits import VERSIONS_MAX
from roost.model.workload import Workload

REACH_MAX = 1_000  # how far back a version may be that is still run by somebody


def keep_version(state: State, workload: Workload) -> None:
    """Remember a workload as it is, before it becomes something else; the oldest versions that nobody runs go."""
    key = version_key(workload, workload.version)
    state.versions[key] = workload
    state.dirty["version", key] = workload
    numbers = versions_of(state, workload)
    if len(numbers) > VERSIONS_MAX:
        used = {each.version for each in instances_of(state, workload)}
        for number in sorted(set(numbers) - used)[: len(numbers) - VERSIONS_MAX]:
            if number != workload.version:
                forget_version(state, workload, number)


def versions_of(state: State, workload: Workload) -> list[int]:
    """The versions before the present one that are known, the newest first."""
    last = max(workload.version - REACH_MAX, 0)
    return [each for each in range(workload.version, last, -1) if version_key(workload, each) in state.versions]


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


def instances_of(state: State, workload: Workload) -> list[Instance]:
    """All that have a record, by index; those beyond its count are extra or on their way out."""
    found = [state.instances.get(f"{workload.key}.{index}") for index in range(state.begun(workload))]
    return [each for each in found if each is not None]
