"""Blockers: every reason why nodes say no to an ask, counted over nodes, each with a code that stays the same."""

import msgspec
import numpy as np

from roost.core.choose import social_mask
from roost.core.claim import subjects_of
from roost.core.filters import DYNAMIC, SOCIAL, STATIC
from roost.core.filters.pool import open_to
from roost.core.fleet import Fleet, Mask
from roost.core.gang import shortfall
from roost.core.operate import frozen, maintenance_words
from roost.core.shortlist import could_fit
from roost.core.state import State
from roost.core.waits import reasons
from roost.model.workload import Ask, Workload

#: filter -> the code of its reason. docs/why.md says what to do about each.
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
OWNERS_TOLD = 3  # projects of a pool that are named to who is none of them


class Blocker(msgspec.Struct, frozen=True):
    """One reason, and for how many nodes it holds. A node can be blocked for several reasons."""

    filter: str
    reason: str
    nodes: int
    code: str = ""


class Blocked(msgspec.Struct, frozen=True):
    """Why an ask has no place now."""

    code: str  # no_nodes | insufficient_resources | quota_exceeded | unsatisfiable | maintenance | placeable
    online: int
    blockers: tuple[Blocker, ...] = ()

    def words(self) -> str:
        """The reasons in one line."""
        found = ["no node is online"] if self.code == "no_nodes" else []
        return "; ".join([*found, *map(blocker_words, self.blockers)])


def blocker_words(blocker: Blocker) -> str:
    """A reason, and for how many nodes it holds where it is about nodes."""
    if not blocker.nodes:
        return blocker.reason
    return f"{blocker.reason} ({blocker.nodes} node{'s' * (blocker.nodes != 1)})"


def blockers_of(state: State, workload: Workload) -> Blocked:
    """Every reason why an instance of a workload waits: what nodes say, its quota, its gang, places kept for others."""
    ask = workload.policy.ask
    if frozen(state):
        held_up = Blocker("maintenance", maintenance_words(state), 0, CODES["maintenance"])
        return Blocked("maintenance", int(np.count_nonzero(state.fleet.online)), (held_up,))
    subjects = subjects_of(workload.project, workload.key, workload.policy.labels)
    by_nodes = nodes_say(state, ask, subjects, open_to(state.fleet, workload.project))
    others = tuple(
        Blocker(each.code, each.words, each.nodes, CODES.get(each.code, each.code)) for each in reasons(state, workload)
    )
    is_failed = any(each.filter == "pool_failed" for each in others)  # no node of it may be left, for now
    if not others or by_nodes.code == "no_nodes" or (by_nodes.code == "unsatisfiable" and not is_failed):
        return msgspec.structs.replace(by_nodes, blockers=by_nodes.blockers + others)
    if workload.policy.gang and shortfall(state, workload.policy.gang):
        return Blocked("unsatisfiable", by_nodes.online, others + by_nodes.blockers)
    code = "quota_exceeded" if any(each.filter == "quota" for each in others) else "insufficient_resources"
    return Blocked(code, by_nodes.online, others + by_nodes.blockers)


def nodes_say(state: State, ask: Ask, subjects: tuple[str, ...] = (), own: Mask | None = None) -> Blocked:
    """Every reason why nodes say no to an ask, counted. `own`: nodes that are not for other projects only."""
    fleet = state.fleet
    online = int(np.count_nonzero(fleet.online))
    if not online:
        return Blocked("no_nodes", 0)
    found: list[Blocker] = []
    short = np.zeros(len(fleet), np.bool_)
    eligible = fits = could_fit(fleet, ask) if own is None else could_fit(fleet, ask) & own
    if own is not None and not bool(own.all()):
        found.append(_blocker("project", _foreign_words(fleet, ~own), ~own))
    for static in STATIC:
        mask = static.mask(fleet, ask)
        if mask is not None and not bool(mask.all()):
            found.append(_blocker(static.name, static.words(fleet, ask, ~mask), ~mask))
            if static.name == "capacity":
                short = ~mask
    for dynamic in DYNAMIC:
        mask = dynamic.mask(fleet, ask)
        eligible = eligible & mask
        failing = ~mask & ~short if dynamic.name in ("resources", "gpu") else ~mask  # capacity tells it better
        if failing.any():
            found.append(_blocker(dynamic.name, dynamic.words(fleet, ask, failing), failing))
    for social in SOCIAL:
        mask = social.mask(fleet, ask, subjects, fits)
        if mask is not None and not bool(mask.all()):
            eligible = eligible & mask
            found.append(_blocker(social.name, social.words(fleet, ask, subjects, ~mask), ~mask))
    if not bool((fits & fleet.online).any()):
        return Blocked("unsatisfiable", online, tuple(found))
    return Blocked("placeable" if eligible.any() else "insufficient_resources", online, tuple(found))


def eligible_rows(fleet: Fleet, ask: Ask, subjects: tuple[str, ...]) -> Mask:
    """Nodes to which no filter says no, as things stand."""
    fits = could_fit(fleet, ask)
    result = fits
    for dynamic in DYNAMIC:
        result = result & dynamic.mask(fleet, ask)
    social = social_mask(fleet, ask, subjects, fits)
    return result if social is None else result & social


def _foreign_words(fleet: Fleet, failing: Mask) -> str:
    pools = {fleet.facts[row].pool: None for row in np.flatnonzero(failing).tolist()}
    whose = {name: " and ".join(f"project {each}" for each in fleet.owners[name][:OWNERS_TOLD]) for name in pools}
    return "pool: " + ", ".join(f"{name} is for {owners}" for name, owners in whose.items())


def _blocker(name: str, words: str, failing: Mask) -> Blocker:
    code = CODES.get(name, name)  # a filter that a plug-in brought has its name as a code
    return Blocker(name, words, int(np.count_nonzero(failing)), code)
