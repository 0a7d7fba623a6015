"""The usage of projects: their share of the fleet, and how far they are from their quotas."""

from roost.core.placement.scorers import SCORE_MAX
from roost.core.state.fleet import Fleet
from roost.core.state.state import State
from roost.model.records.project import INSTANCES, Project
from roost.model.records.workload import Ask

Amounts = dict[str, int]  # resource -> amount, and how many instances


def totals_of(fleet: Fleet) -> dict[str, int]:
    return {resource: int(column[fleet.online].sum()) for resource, column in fleet.total.items()}


def share_of(state: State, project: str, totals: dict[str, int]) -> int:
    """The largest share that a project has of any resource, divided by its weight; SCORE_MAX is all."""
    allocated = state.project_usage.get(project)
    if allocated is None:
        return 0
    shares = [
        allocated[resource] * SCORE_MAX // total
        for resource, total in totals.items()
        if total and resource in allocated
    ]
    return max(shares, default=0) // (state.projects[project].weight if project in state.projects else 1)


def quota_excess(state: State, project: str, ask: Ask, count: int = 1) -> dict[str, int]:
    """By how much a project would exceed its quota with `count` more of an ask; empty: it may have them."""
    existing = _with_quota(state, project)
    if existing is None:
        return {}
    over = _over(existing, state.project_usage.get(project, {}), ask, count)
    if not over or not existing.borrow:
        return over
    lent = _lendable(state)
    added = dict(ask.resources) | {INSTANCES: 1}
    return {resource: missing for resource in over if (missing := added[resource] * count - lent[resource]) > 0}


def exceeds_quota(state: State, project: str) -> bool:
    """Whether a project has borrowed, which others may reclaim."""
    existing = state.projects.get(project)
    if existing is None or not existing.borrow or existing.counted:
        return False
    allocated = state.project_usage.get(project, {})
    return any(allocated.get(resource, 0) > amount for resource, amount in existing.quota.items())


def borrowed(state: State) -> set[int]:
    """The attempts with borrowed allocations: the youngest of a project, until the rest is within the quota."""
    over: dict[str, Amounts] = {}
    for name in state.projects:
        if exceeds_quota(state, name):
            allocated = state.project_usage[name]
            over[name] = {
                resource: allocated.get(resource, 0) - most for resource, most in state.projects[name].quota.items()
            }
    found: set[int] = set()
    if not over:
        return found
    holders = {
        instance.token: instance
        for allocated in state.allocated.values()
        for instance in allocated.values()
        if not instance.prefilled_behind
    }
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


def is_entitled(state: State, project: str, ask: Ask) -> bool:
    """Whether a project would be within its quota with one more, and with its pending preemptions."""
    existing = _with_quota(state, project)
    if existing is None:
        return True
    allocated = dict(state.project_usage.get(project, {}))
    for key in state.pending_preemptions:
        workload = state.workloads.get(key.rpartition(".")[0])
        if workload is not None and workload.project == project:
            for resource, amount in (*workload.policy.ask.resources, (INSTANCES, 1)):
                allocated[resource] = allocated.get(resource, 0) + amount
    return not _over(existing, allocated, ask, 1)


def _with_quota(state: State, project: str) -> Project | None:
    found = state.projects.get(project)
    return found if found is not None and found.quota and not found.counted else None


def _over(project: Project, allocated: Amounts, ask: Ask, count: int) -> dict[str, int]:
    added = dict(ask.resources)
    added[INSTANCES] = 1
    return {
        resource: over
        for resource, most in project.quota.items()
        if resource in added and (over := allocated.get(resource, 0) + added[resource] * count - most) > 0
    }


def _lendable(state: State) -> dict[str, int]:
    left: dict[str, int] = {}
    for name, project in state.projects.items():
        allocated = state.project_usage.get(name, {})
        for resource, most in project.quota.items():
            left[resource] = left.get(resource, 0) + most - allocated.get(resource, 0)
    return left
