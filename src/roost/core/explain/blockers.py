"""Blockers: every reason why nodes say no to an ask, counted over nodes, each with a code that stays the same."""

import msgspec
import numpy as np

from roost.core.explain.queue_blockers import reasons
from roost.core.nodes.maintenance import maintenance_text
from roost.core.placement.filters import AFFINITY, DYNAMIC, STATIC
from roost.core.placement.filters.location import open_to
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.select import affinity_mask
from roost.core.queue.gang import capacity_shortfall
from roost.core.state.allocation import selectors_of
from roost.core.state.fleet import Fleet, Mask
from roost.core.state.state import State, in_maintenance
from roost.model.reasons.reason import BlockerText, PlacementRejected, Text, joined
from roost.model.reasons.subjects import ProjectRef, note_parts
from roost.model.records.workload import Ask, Workload

#: filter -> the code of its reason. docs/guides/why.md says what to do about each.
CODES = {
    "pool": "wrong_pool",
    "region": "wrong_region",
    "driver": "no_driver",
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
    "quota": "quota_exceeded",
    "after": "waits_for_others",
    "schedule": "waits_for_its_tick",
    "gang": "gang_waits",
    "kept": "kept_for_others",
    "project": "foreign_pool",
    "pool_failed": "pool_failed",
    "maintenance": "maintenance",
}
OWNERS_LISTED = 3  # projects of a pool that are named to who is none of them


class Blocker(msgspec.Struct, frozen=True):
    """One reason, and for how many nodes it holds. A node can be blocked for several reasons."""

    filter: str
    reason: Text
    nodes: int
    code: str = ""


class Blocked(msgspec.Struct, frozen=True):
    """Why an ask has no place now."""

    code: str  # no_nodes | insufficient_resources | quota_exceeded | unsatisfiable | maintenance | placeable
    online: int
    blockers: tuple[Blocker, ...] = ()

    def reason(self) -> PlacementRejected:
        """Why a workload that does not queue is rejected."""
        found = [BlockerText(item.code, item.reason, item.nodes) for item in self.blockers]
        return PlacementRejected(self.code, tuple(found))

    def text(self) -> Text:
        """The reasons in one line."""
        found: list[Text] = [("no node is online",)] if self.code == "no_nodes" else []
        return joined("; ", [*found, *map(blocker_text, self.blockers)])


def blocker_text(blocker: Blocker) -> Text:
    """A reason, and for how many nodes it holds where it is about nodes."""
    if not blocker.nodes:
        return blocker.reason
    return (*blocker.reason, f" ({blocker.nodes} node{'s' * (blocker.nodes != 1)})")


def blockers_of(state: State, workload: Workload) -> Blocked:
    """Every reason why an instance of a workload waits: what nodes say, its quota, its gang, places kept for others."""
    ask = workload.policy.ask
    if in_maintenance(state):
        held_up = Blocker("maintenance", note_parts(maintenance_text(state)), 0, CODES["maintenance"])
        return Blocked("maintenance", int(np.count_nonzero(state.fleet.online)), (held_up,))
    subjects = selectors_of(workload.project, workload.key, workload.policy.labels)
    by_nodes = node_blockers(state, ask, subjects, open_to(state.fleet, workload.project))
    others = tuple(
        Blocker(reason.code, reason.text, reason.nodes, CODES.get(reason.code, reason.code))
        for reason in reasons(state, workload)
    )
    is_failed = any(blocker.filter == "pool_failed" for blocker in others)  # no node of it may be left, for now
    if not others or by_nodes.code == "no_nodes" or (by_nodes.code == "unsatisfiable" and not is_failed):
        return msgspec.structs.replace(by_nodes, blockers=by_nodes.blockers + others)
    if workload.policy.gang and capacity_shortfall(state, workload.policy.gang):
        return Blocked("unsatisfiable", by_nodes.online, others + by_nodes.blockers)
    code = "quota_exceeded" if any(blocker.filter == "quota" for blocker in others) else "insufficient_resources"
    return Blocked(code, by_nodes.online, others + by_nodes.blockers)


def node_blockers(state: State, ask: Ask, subjects: tuple[str, ...] = (), own: Mask | None = None) -> Blocked:
    """Every reason why nodes say no to an ask, counted. `own`: nodes that are not for other projects only."""
    fleet = state.fleet
    online = int(np.count_nonzero(fleet.online))
    if not online:
        return Blocked("no_nodes", 0)
    found: list[Blocker] = []
    short = np.zeros(len(fleet), np.bool_)
    eligible = fits = fits_when_empty(fleet, ask) if own is None else fits_when_empty(fleet, ask) & own
    if own is not None and not bool(own.all()):
        found.append(_blocker("project", _foreign_text(fleet, ~own), ~own))
    for static in STATIC:
        mask = static.mask(fleet, ask)
        if mask is not None and not bool(mask.all()):
            found.append(_blocker(static.name, static.explain(fleet, ask, ~mask), ~mask))
            if static.name == "capacity":
                short = ~mask
    for dynamic in DYNAMIC:
        mask = dynamic.mask(fleet, ask)
        eligible = eligible & mask
        failing = ~mask & ~short if dynamic.name in ("resources", "gpu") else ~mask  # capacity tells it better
        if failing.any():
            text = dynamic.explain(fleet, ask, failing)
            # The status of a pool quotes the operator who marked it.
            found.append(_blocker(dynamic.name, note_parts(text) if dynamic.name == "status" else text, failing))
    for social in AFFINITY:
        mask = social.mask(fleet, ask, subjects, fits)
        if mask is not None and not bool(mask.all()):
            eligible = eligible & mask
            found.append(_blocker(social.name, social.explain(fleet, ask, subjects, ~mask), ~mask))
    if not bool((fits & fleet.online).any()):
        return Blocked("unsatisfiable", online, tuple(found))
    return Blocked("placeable" if eligible.any() else "insufficient_resources", online, tuple(found))


def eligible_rows(fleet: Fleet, ask: Ask, subjects: tuple[str, ...]) -> Mask:
    """Nodes to which no filter says no, as things stand."""
    fits = fits_when_empty(fleet, ask)
    result = fits
    for dynamic in DYNAMIC:
        result = result & dynamic.mask(fleet, ask)
    social = affinity_mask(fleet, ask, subjects, fits)
    return result if social is None else result & social


def _foreign_text(fleet: Fleet, failing: Mask) -> Text:
    pools = {fleet.facts[row].pool: None for row in np.flatnonzero(failing).tolist()}
    found: list[Text] = []
    for name in pools:
        owners: list[Text] = [(ProjectRef(owner),) for owner in fleet.owners[name][:OWNERS_LISTED]]
        found.append((f"{name} is for ", *joined(" and ", owners)))
    return ("pool: ", *joined(", ", found))


def _blocker(name: str, text: str | Text, failing: Mask) -> Blocker:
    code = CODES.get(name, name)  # a filter that a plug-in brought has its name as a code
    return Blocker(name, (text,) if isinstance(text, str) else text, int(np.count_nonzero(failing)), code)
