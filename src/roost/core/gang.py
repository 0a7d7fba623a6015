"""Gangs: instances that start together or not at all, of one workload or of several that share a name.

Whoever of a gang has to start again makes all of it start again: the others are stopped first.
"""

from typing import TYPE_CHECKING

from roost.core.charge import totals_of
from roost.core.order import Line, Waiting, rank_of
from roost.model.states import HOLDING
from roost.model.workload import Workload

if TYPE_CHECKING:
    from roost.core.state import State


def join_gang(state: "State", workload: Workload) -> None:
    """Remember a workload with its gang."""
    if workload.policy.gang:
        state.gangs.setdefault(workload.policy.gang, {})[workload.key] = None


def leave_gang(state: "State", workload: Workload) -> None:
    """A workload is forgotten."""
    gang = workload.policy.gang
    if gang in state.gangs:
        state.gangs[gang].pop(workload.key, None)
        if not state.gangs[gang]:
            del state.gangs[gang]


def assemble(state: "State", line: Line) -> list[Waiting]:
    """All of a gang, if all of it is there and waits; empty: somebody is missing, or still holds room."""
    found: list[Waiting] = []
    size = wanted = 0
    for workload in members(state, line.alone):
        size += workload.count
        wanted = max(wanted, workload.policy.gang_size)
        waiting = _waiting(state, workload)
        if waiting is None:
            return []
        found += waiting
    return found if size >= wanted else []


def members(state: "State", gang: str) -> list[Workload]:
    """The workloads of a gang that are not over, the oldest first."""
    known = [state.workloads[key] for key in state.gangs.get(gang, ()) if key in state.workloads]
    return sorted((each for each in known if not each.finished_ms), key=lambda each: each.serial)


def missing(state: "State", gang: str) -> int:
    """How many instances of a gang have not been submitted yet."""
    found = members(state, gang)
    return max(0, max((each.policy.gang_size for each in found), default=0) - sum(each.count for each in found))


def shortfall(state: "State", gang: str) -> dict[str, tuple[int, int]]:
    """What all of a gang needs and all nodes that are online together have, where that is less."""
    needed: dict[str, int] = {}
    for workload in members(state, gang):
        for resource, amount in workload.policy.ask.resources:
            needed[resource] = needed.get(resource, 0) + amount * workload.count
    there = totals_of(state.fleet)
    return {each: (n, there.get(each, 0)) for each, n in needed.items() if n > there.get(each, 0)}


def _waiting(state: "State", workload: Workload) -> list[Waiting] | None:
    counts = state.progress_of(workload).counts
    if workload.waits or any(counts.get(each) for each in HOLDING):
        return None
    rank = rank_of(workload)
    found = []
    if counts.get("queued"):
        for index in range(state.begun(workload)):
            instance = state.instances.get(f"{workload.key}.{index}")
            if instance is not None and instance.state == "queued":
                if instance.ready_ms > state.now_ms:
                    return None
                found.append(Waiting(rank, workload, index, True))
    if state.has_fresh(workload):
        found += [Waiting(rank, workload, index, False) for index in range(state.begun(workload), workload.count)]
    return found
