"""Blockers that are not about nodes: quota, gang, reservations."""

from typing import NamedTuple

import numpy as np

from roost.core.nodes.pools import failed_pools
from roost.core.placement.filters.location import accepted_by, open_to
from roost.core.placement.filters.resources import format_amount
from roost.core.queue.backfill import unreserved_mask
from roost.core.queue.fair_share import quota_excess
from roost.core.queue.gang import capacity_shortfall, members, missing
from roost.core.state.queue import EquivalenceClass
from roost.core.state.state import State
from roost.model.reasons.reason import Text, joined
from roost.model.reasons.subjects import InstanceRef, ProjectRef, WorkloadRef, note_parts
from roost.model.records.project import Pool
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED


class QueueBlocker(NamedTuple):
    """Why an instance is pending: a code, a text, and how many nodes it is about (0: none in particular)."""

    code: str  # quota | gang | kept | pool_failed
    text: Text
    nodes: int = 0


def reasons(state: State, workload: Workload) -> list[QueueBlocker]:
    """All that keeps an instance of a workload waiting apart from the nodes themselves."""
    found = []
    policy = workload.policy
    over = quota_excess(state, workload.project, policy.ask)
    if over:
        by = ", ".join(format_amount(name, amount) for name, amount in over.items())
        text = ("quota: ", ProjectRef(workload.project), f" would pass its quota by {by}")
        found.append(QueueBlocker("quota", text))
    if policy.gang:
        found.append(QueueBlocker("gang", (f"gang: {_format_gang(state, policy.gang)}",)))
    line = _class_of(state, workload)
    failed = failed_pools(state, accepted_by(state.fleet, policy.ask))
    if failed:
        names = joined(", ", [_failed_text(pool) for pool in failed])
        found.append(QueueBlocker("pool_failed", ("pool: ", *names, "; no fallback pool is ready")))
    allowed = unreserved_mask(state, line, workload, state.now_ms)
    own = open_to(state.fleet, workload.project)
    if allowed is not None and not (own is not None and bool((own == allowed).all())):
        rows = np.flatnonzero(~allowed if own is None else own & ~allowed)
        nodes = {state.fleet.names[row] for row in rows.tolist()}
        found.append(QueueBlocker("kept", ("kept: ", *_reserved_for_others(state, workload, line, nodes)), len(rows)))
    return found


def _failed_text(pool: Pool) -> Text:
    return (f"{pool.name} has failed", *((" (", *note_parts(pool.reason), ")") if pool.reason else ()))


def _class_of(state: State, workload: Workload) -> EquivalenceClass:
    key = state.queue.key_of(workload)
    return state.queue.classes.get(key) or EquivalenceClass(*key)


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
