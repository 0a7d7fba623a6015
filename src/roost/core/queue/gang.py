"""Gangs: instances that start together or not at all, of one workload or of several that share a name.

If one member of a gang has to start again, all start again: the others are stopped first.
"""

from collections import Counter

from roost.core.queue.fair_share import totals_of
from roost.core.state.dependencies import link
from roost.core.state.queue import EquivalenceClass, PendingHead, rank_of
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED, InstanceState


def join_gang(state: State, workload: Workload) -> None:
    if workload.policy.gang:
        link(state.gangs, workload.policy.gang, workload.key)


def pending_members(state: State, line: EquivalenceClass) -> list[PendingHead]:
    """All of a gang, if all of it is pending; empty: a member is not submitted yet, or still has an allocation."""
    found: list[PendingHead] = []
    size = wanted = 0
    for workload in members(state, line.isolated):
        size += workload.count
        wanted = max(wanted, workload.policy.gang_size)
        waiting = _waiting(state, workload)
        if waiting is None:
            return []
        found += waiting
    return found if size >= wanted else []


def members(state: State, gang: str) -> list[Workload]:
    existing = [state.workloads[key] for key in state.gangs.get(gang, ()) if key in state.workloads]
    return sorted((workload for workload in existing if not workload.finished_ms), key=lambda item: item.serial)


def missing(state: State, gang: str) -> int:
    found = members(state, gang)
    size = max((workload.policy.gang_size for workload in found), default=0)
    return max(0, size - sum(workload.count for workload in found))


def capacity_shortfall(state: State, gang: str) -> dict[str, tuple[int, int]]:
    """What all of a gang needs and all online nodes together have, where that is less."""
    needed: Counter[str] = Counter()
    for workload in members(state, gang):
        for resource, amount in workload.policy.ask.resources:
            needed[resource] += amount * workload.count
    there = totals_of(state.fleet)
    return {name: (n, there.get(name, 0)) for name, n in needed.items() if n > there.get(name, 0)}


def _waiting(state: State, workload: Workload) -> list[PendingHead] | None:
    counts = state.progress_of(workload).counts
    if workload.pending_conditions or any(counts.get(state) for state in ALLOCATED):
        return None
    rank = rank_of(workload)
    found = []
    if counts.get(InstanceState.QUEUED):
        for instance in instances_of(state, workload):
            if instance.state == InstanceState.QUEUED:
                if instance.not_before_ms > state.now_ms:
                    return None
                found.append(PendingHead(rank, workload, instance.index, True))
    if state.has_unstarted(workload):
        unstarted = range(state.placed_count(workload), workload.count)
        found += [PendingHead(rank, workload, index, False) for index in unstarted]
    return found
