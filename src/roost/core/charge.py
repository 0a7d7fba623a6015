"""What each project holds: its share of the fleet, and how far it is from its quota."""

from typing import TYPE_CHECKING

from roost.core.fleet import Fleet
from roost.core.scorers import ONE
from roost.model.project import INSTANCES, Project
from roost.model.workload import Ask

if TYPE_CHECKING:
    from roost.core.state import State

Held = dict[str, int]  # resource -> amount, and how many instances


def charge(state: "State", project: str, ask: Ask, sign: int) -> None:
    """An instance of a project came to hold room, or gave it back."""
    held = state.charged.get(project)
    if held is None:
        held = state.charged[project] = {INSTANCES: 0}
    for resource, amount in ask.resources:
        held[resource] = held.get(resource, 0) + sign * amount
    held[INSTANCES] += sign
    if not held[INSTANCES]:
        del state.charged[project]


def totals_of(fleet: Fleet) -> dict[str, int]:
    """What all nodes that are online have together."""
    return {resource: int(column[fleet.online].sum()) for resource, column in fleet.total.items()}


def share_of(state: "State", project: str, totals: dict[str, int]) -> int:
    """The largest share that a project has of any resource, by its weight; ONE is all of it at weight 1."""
    held = state.charged.get(project)
    if held is None:
        return 0
    shares = [held[resource] * ONE // total for resource, total in totals.items() if total and resource in held]
    return max(shares, default=0) // _weight(state, project)


def excess(state: "State", project: str, ask: Ask, count: int = 1) -> dict[str, int]:
    """By how much a project would pass its quota with so many more of an ask; empty: it would not, or may."""
    known = state.projects.get(project)
    if known is None or not known.quota or known.counted:
        return {}
    held = state.charged.get(project, {})
    over = {each: amount for each, amount in _over(known, held, ask, count).items() if amount > 0}
    if not over or not known.borrow:
        return over
    lent = _lendable(state)
    added = dict(ask.resources) | {INSTANCES: 1}
    return {each: missing for each in over if (missing := added.get(each, 0) * count - lent[each]) > 0}


def beyond(state: "State", project: str) -> bool:
    """Whether a project holds more than its quota: it has borrowed what others may want back."""
    known = state.projects.get(project)
    if known is None or not known.borrow or known.counted:
        return False
    held = state.charged.get(project, {})
    return any(held.get(resource, 0) > amount for resource, amount in known.quota.items())


def borrowed(state: "State") -> set[int]:
    """The attempts that hold what their project borrowed: the youngest, until the rest is within the quota."""
    over: dict[str, Held] = {}
    for name in state.projects:
        if beyond(state, name):
            held = state.charged[name]
            over[name] = {each: held.get(each, 0) - most for each, most in state.projects[name].quota.items()}
    found: set[int] = set()
    if not over:
        return found
    holders = {each.token: each for held in state.held.values() for each in held.values() if not each.behind}
    for token in sorted(holders, reverse=True):
        instance = holders[token]
        workload = state.spec_of(instance)
        left = over.get(workload.project)
        if left is not None and any(amount > 0 for amount in left.values()):
            found.add(token)
            for resource, amount in (*workload.policy.ask.resources, (INSTANCES, 1)):
                if resource in left:
                    left[resource] -= amount
    return found


def is_entitled(state: "State", project: str, ask: Ask) -> bool:
    """Whether a project would still be within its quota with one more, those counted for whom room is being made."""
    known = state.projects.get(project)
    if known is None or not known.quota or known.counted:
        return True
    held = dict(state.charged.get(project, {}))
    for key in state.making_room:
        workload = state.workloads.get(key.rpartition(".")[0])
        if workload is not None and workload.project == project:
            for resource, amount in (*workload.policy.ask.resources, (INSTANCES, 1)):
                held[resource] = held.get(resource, 0) + amount
    return all(amount <= 0 for amount in _over(known, held, ask, 1).values())


def _over(project: Project, held: Held, ask: Ask, count: int) -> dict[str, int]:
    added = dict(ask.resources) | {INSTANCES: 1}
    return {
        each: held.get(each, 0) + added[each] * count - most
        for each, most in project.quota.items()
        if each in added
    }  # fmt: skip


def _lendable(state: "State") -> dict[str, int]:
    """What all quotas together leave, resource by resource."""
    left: dict[str, int] = {}
    for name, project in state.projects.items():
        held = state.charged.get(name, {})
        for resource, most in project.quota.items():
            left[resource] = left.get(resource, 0) + most - held.get(resource, 0)
    return left


def _weight(state: "State", project: str) -> int:
    known = state.projects.get(project)
    return known.weight if known else 1
