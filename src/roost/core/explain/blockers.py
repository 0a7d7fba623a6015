"""Blockers: every reason why nodes say no to an ask, counted over nodes, each with a code that stays the same."""

import msgspec
import numpy as np

from roost.core.nodes.maintenance import maintenance_text
from roost.core.nodes.pools import failed_pools
from roost.core.placement.filters import AFFINITY, DYNAMIC, STATIC
from roost.core.placement.filters.isolation import explain_project, may_run_as, project_mask
from roost.core.placement.filters.location import accepted_by, open_to, pools_open_to
from roost.core.placement.filters.resources import format_amount
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.select import affinity_mask
from roost.core.queue.backfill import unreserved_mask
from roost.core.queue.fair_share import quota_excess
from roost.core.queue.gang import capacity_shortfall, members, missing
from roost.core.state.allocation import selectors_of
from roost.core.state.fleet import Fleet, Mask
from roost.core.state.queue import EquivalenceClass
from roost.core.state.state import State, awaits_agents, in_maintenance
from roost.model.reasons.reason import BlockerText, PlacementRejected, Text, joined
from roost.model.reasons.subjects import InstanceRef, ProjectRef, WorkloadRef, note_parts
from roost.model.records.project import Pool
from roost.model.records.workload import Ask, Workload
from roost.model.spec.units import show_duration
from roost.model.states import ALLOCATED

#: filter -> the code of its reason. docs/guides/why.md says what to do about each.
CODES = {
    "pool": "wrong_pool",
    "region": "wrong_region",
    "driver": "no_driver",
    "volume": "no_volume",
    "isolation": "too_little_isolation",
    "run_as": "user_not_available",
    "limits": "limits_not_enforced",
    "vm": "no_vm_part",
    "require": "rule_broken",
    "taints": "taint_not_tolerated",
    "gpu_model": "wrong_gpu_model",
    "capacity": "too_large",
    "status": "node_unavailable",
    "resources": "no_room",
    "gpu": "no_gpu_free",
    "ports": "port_taken",
    "use": "rule_broken_now",
    "near": "nobody_near",
    "apart": "somebody_apart",
    "spread": "spread_broken",
    "per_node": "per_node_reached",
    "home": "waits_for_its_node",
    "quota": "quota_exceeded",
    "after": "waits_for_others",
    "approval": "needs_approval",
    "schedule": "waits_for_its_tick",
    "gang": "gang_waits",
    "kept": "kept_for_others",
    "project": "foreign_pool",
    "pool_failed": "pool_failed",
    "maintenance": "maintenance",
    "agents": "awaiting_agents",
}
OWNERS_LISTED = 3  # projects of a pool that are named to who is none of them


class Blocker(msgspec.Struct, frozen=True):
    """A node can be blocked for several reasons."""

    filter: str
    reason: Text
    nodes: int
    code: str = ""


class Blocked(msgspec.Struct, frozen=True):
    # no_nodes | insufficient_resources | quota_exceeded | unsatisfiable | placeable | maintenance | awaiting_agents
    code: str
    online: int
    blockers: tuple[Blocker, ...] = ()

    def reason(self) -> PlacementRejected:
        found = [BlockerText(item.code, item.reason, item.nodes) for item in self.blockers]
        return PlacementRejected(self.code, tuple(found))

    def text(self) -> Text:
        found: list[Text] = [("no node is online",)] if self.code == "no_nodes" else []
        return joined("; ", [*found, *map(blocker_text, self.blockers)])


def blocker_text(blocker: Blocker) -> Text:
    if not blocker.nodes:
        return blocker.reason
    return (*blocker.reason, f" ({blocker.nodes} node{'s' * (blocker.nodes != 1)})")


def blockers_of(state: State, workload: Workload) -> Blocked:
    """Every reason why an instance of a workload is pending: nodes, quota, gang, reservations."""
    ask = workload.policy.ask
    if in_maintenance(state):
        held_up = _blocker("maintenance", note_parts(maintenance_text(state)))
        return Blocked("maintenance", _count(state.fleet.online), (held_up,))
    if awaits_agents(state):
        left = show_duration(state.adoption_deadline_ms() - state.now_ms)
        held_up = _blocker("agents", f"agents: what an earlier server ordered may still run for {left}")
        return Blocked("awaiting_agents", _count(state.fleet.online), (held_up,))
    subjects = selectors_of(workload.project, workload.key, workload.policy.labels)
    by_nodes = node_blockers(state, ask, subjects, workload.project)
    others = queue_blockers(state, workload)
    is_failed = any(blocker.filter == "pool_failed" for blocker in others)  # no node of it may be left, for now
    if not others or by_nodes.code == "no_nodes" or (by_nodes.code == "unsatisfiable" and not is_failed):
        return msgspec.structs.replace(by_nodes, blockers=by_nodes.blockers + others)
    if workload.policy.gang and capacity_shortfall(state, workload.policy.gang):
        return Blocked("unsatisfiable", by_nodes.online, others + by_nodes.blockers)
    code = "quota_exceeded" if any(blocker.filter == "quota" for blocker in others) else "insufficient_resources"
    return Blocked(code, by_nodes.online, others + by_nodes.blockers)


def queue_blockers(state: State, workload: Workload) -> tuple[Blocker, ...]:
    """Every reason apart from the nodes themselves: quota, gang, failed pools, reservations."""
    found: list[Blocker] = []
    policy = workload.policy
    over = quota_excess(state, workload.project, policy.ask)
    if over:
        by = ", ".join(format_amount(name, amount) for name, amount in over.items())
        found.append(_blocker("quota", ("quota: ", ProjectRef(workload.project), f" would pass its quota by {by}")))
    if policy.gang:
        found.append(_blocker("gang", f"gang: {_format_gang(state, policy.gang)}"))
    key = state.queue.key_of(workload)
    line = state.queue.classes.get(key) or EquivalenceClass(*key)
    failed = failed_pools(state, accepted_by(state.fleet, policy.ask))
    if failed:
        names = joined(", ", [_failed_text(pool) for pool in failed])
        found.append(_blocker("pool_failed", ("pool: ", *names, "; no fallback pool is ready")))
    allowed = unreserved_mask(state, line, workload, state.now_ms)
    own = open_to(state.fleet, workload.project, policy.ask)
    if allowed is not None and not (own is not None and bool((own == allowed).all())):
        rows = np.flatnonzero(~allowed if own is None else own & ~allowed)
        nodes = {state.fleet.names[row] for row in rows.tolist()}
        found.append(_blocker("kept", ("kept: ", *_reserved_for_others(state, workload, line, nodes)), len(rows)))
    return tuple(found)


def _failed_text(pool: Pool) -> Text:
    return (f"{pool.name} has failed", *((" (", *note_parts(pool.reason), ")") if pool.reason else ()))


def _format_gang(state: State, gang: str) -> str:
    lacking = missing(state, gang)
    if lacking:
        return f"{lacking} more of it have to be submitted"
    for resource, (needed, there) in capacity_shortfall(state, gang).items():
        return f"all of it needs {format_amount(resource, needed)}, all nodes have {format_amount(resource, there)}"
    counts = [state.progress_of(workload).counts for workload in members(state, gang)]
    if any(count.get(holding) for count in counts for holding in ALLOCATED):
        return "the others of it have to stop before all of it starts again"
    return "all of it has to fit at once"


def _reserved_for_others(state: State, workload: Workload, line: EquivalenceClass, nodes: set[str]) -> Text:
    found: list[Text] = [
        ("reserved for ", ProjectRef(reservation.project))
        for reservation in state.reservations.values()
        if reservation.project != workload.project and nodes.intersection(reservation.nodes)
    ]
    found += [
        ("kept for ", InstanceRef.of(reservation.instance))
        for other, reservation in state.backfill_reservations.items()
        if other is not line and reservation.node in nodes
    ]
    gangs = [
        reservation
        for other, reservation in state.gang_reservations.items()
        if other is not line and nodes.intersection(reservation.nodes)
    ]
    found += [("kept for gang ", WorkloadRef.of(reservation.instance)) for reservation in gangs]
    return joined(", ", list(dict.fromkeys(found)))


def node_blockers(state: State, ask: Ask, subjects: tuple[str, ...] = (), project: str = "") -> Blocked:
    """Every reason why nodes reject an ask of a project, counted."""
    fleet = state.fleet
    online = _count(fleet.online)
    if not online:
        return Blocked("no_nodes", 0)
    found: list[Blocker] = []
    short = np.zeros(len(fleet), np.bool_)
    own = open_to(fleet, project, ask) if project else None
    eligible = fits = fits_when_empty(fleet, ask) if own is None else fits_when_empty(fleet, ask) & own
    if own is not None and not bool(own.all()):
        found += _project_blockers(fleet, ask, project)
    for static in STATIC:
        mask = static.mask(fleet, ask)
        if mask is not None and not bool(mask.all()):
            found.append(_blocker(static.name, static.explain(fleet, ask, ~mask), _count(~mask)))
            if static.name == "capacity":
                short = ~mask
    for dynamic in DYNAMIC:
        mask = dynamic.mask(fleet, ask)
        eligible = eligible & mask
        failing = ~mask & ~short if dynamic.name in ("resources", "gpu") else ~mask  # capacity tells it better
        if failing.any():
            text = dynamic.explain(fleet, ask, failing)
            # The status of a pool quotes the operator who marked it.
            parts = note_parts(text) if dynamic.name == "status" else text
            found.append(_blocker(dynamic.name, parts, _count(failing)))
    for social in AFFINITY:
        mask = social.mask(fleet, ask, subjects, fits)
        if mask is not None and not bool(mask.all()):
            eligible = eligible & mask
            found.append(_blocker(social.name, social.explain(fleet, ask, subjects, ~mask), _count(~mask)))
    if not bool((fits & fleet.online).any()):
        return Blocked("unsatisfiable", online, tuple(found))
    return Blocked("placeable" if eligible.any() else "insufficient_resources", online, tuple(found))


def eligible_rows(fleet: Fleet, ask: Ask, subjects: tuple[str, ...]) -> Mask:
    fits = fits_when_empty(fleet, ask)
    result = fits
    for dynamic in DYNAMIC:
        result = result & dynamic.mask(fleet, ask)
    social = affinity_mask(fleet, ask, subjects, fits)
    return result if social is None else result & social


def _project_blockers(fleet: Fleet, ask: Ask, project: str) -> list[Blocker]:
    """What an administrator has set for pools and for the project."""
    found: list[Blocker] = []
    pools, own = pools_open_to(fleet, project), project_mask(fleet, project, ask)
    if pools is not None and not bool(pools.all()):
        found.append(_blocker("project", _foreign_text(fleet, ~pools), _count(~pools)))
    if own is not None and not bool(own.all()):
        name = "isolation" if may_run_as(fleet, project, ask) else "run_as"
        found.append(_blocker(name, explain_project(fleet, project, ask, ~own), _count(~own)))
    return found


def _foreign_text(fleet: Fleet, failing: Mask) -> Text:
    pools = {fleet.facts[row].pool: None for row in np.flatnonzero(failing).tolist()}
    found: list[Text] = []
    for name in pools:
        owners: list[Text] = [(ProjectRef(owner),) for owner in fleet.owners[name][:OWNERS_LISTED]]
        found.append((f"{name} is for ", *joined(" and ", owners)))
    return ("pool: ", *joined(", ", found))


def _blocker(name: str, text: str | Text, nodes: int = 0) -> Blocker:
    code = CODES.get(name, name)  # a filter that a plug-in brought has its name as a code
    return Blocker(name, (text,) if isinstance(text, str) else text, nodes, code)


def _count(mask: Mask) -> int:
    return int(np.count_nonzero(mask))
