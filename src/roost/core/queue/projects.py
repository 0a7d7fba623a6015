"""Settings of operators: projects and reservations (`pools.py` has pools). They take effect in the same step."""

from typing import Any

from msgspec.structs import replace

from roost.core.queue.home import stays
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.core.transitions import stop
from roost.core.watch import watch_reservation
from roost.model import limits
from roost.model.errors import Conflict, Invalid, NotFound
from roost.model.events import Reserve, SetProject, Unset
from roost.model.reasons.attempts import NodeReserved
from roost.model.reasons.subjects import ProjectRef
from roost.model.records.project import Reservation
from roost.model.states import InstanceState, NodeStatus


def set_project(state: State, out: Step, event: SetProject, now: int) -> None:
    """Set the weight and quota of a project. It keeps what it has allocated beyond a new quota."""
    if event.project.name not in state.projects and len(state.projects) >= limits.PROJECTS_MAX:
        raise Conflict(f"there are {limits.PROJECTS_MAX:,} projects already", code="too_many")
    state.projects[event.project.name] = event.project
    state.dirty["project", event.project.name] = event.project
    state.apply_project(event.project.name)
    state.queue.recheck_all()
    out.reply(event.request, event.project.name)


def reserve(state: State, out: Step, event: Reserve, now: int) -> None:
    """Reserve nodes. At the start other work is moved; until then only work that ends in time is placed there."""
    reservation = event.reservation
    name = reservation.name
    if name in state.reservations:
        raise Conflict(f"there is a reservation {name} already", code="name_in_use", path="name")
    if len(state.reservations) >= limits.RESERVATIONS_MAX:
        raise Conflict(f"there are {limits.RESERVATIONS_MAX:,} reservations already", code="too_many")
    if reservation.end_ms and reservation.end_ms <= max(now, reservation.start_ms):
        raise Invalid("end", "it would be over before it begins")
    nodes = reservation.nodes or _choose(state, event)
    unknown = [node for node in nodes if node not in state.nodes]
    clash = _conflicting(state, reservation, nodes)
    if unknown:
        raise NotFound(f"there is no node {unknown[0]}", path="nodes", params={"node": unknown[0]})
    if clash:
        raise Conflict(clash, code="reserved", path="nodes")
    if not nodes or len(nodes) < event.count:
        message = f"{event.count} nodes are wanted, {len(nodes)} can be reserved then"
        facts = {"wanted": event.count, "available": len(nodes)}
        raise Conflict(message, code="insufficient_resources", path="count", params=facts)
    made = replace(reservation, nodes=tuple(sorted(nodes)), start_ms=max(reservation.start_ms, now))
    state.reservations[name] = made
    state.dirty["reservation", name] = made
    watch_reservation(state, made)
    state.queue.recheck_all()
    out.reply(event.request, name)


def unset(state: State, out: Step, event: Unset, now: int) -> None:
    existing: dict[str, dict[str, Any]] = {
        "project": state.projects, "pool": state.pools, "reservation": state.reservations,
    }  # fmt: skip
    if existing[event.kind].pop(event.name, None) is None:
        raise NotFound(f"nothing is set for {event.kind} {event.name}")
    state.dirty[event.kind, event.name] = None
    if event.kind == "pool":
        state.apply_pool(event.name)
        state.silent_pools.pop(event.name, None)
    elif event.kind == "project":
        state.apply_project(event.name)
    state.queue.recheck_all()
    out.reply(event.request, event.name)


def check_reservation(state: State, out: Step, name: str, now: int) -> None:
    """When a reservation begins, other work is stopped, but no virtual machine that stays; then it is removed."""
    reservation = state.reservations.get(name)
    if reservation is None:
        return
    state.queue.recheck_all()
    if reservation.end_ms and reservation.end_ms <= now:
        del state.reservations[name]
        state.dirty["reservation", name] = None
        return
    if reservation.start_ms > now:
        return
    for node in reservation.nodes:
        for token in sorted(state.allocated.get(node, ())):
            instance = state.allocated[node][token]
            workload = state.spec_of(instance)
            is_foreign = workload.project != reservation.project
            if is_foreign and instance.state != InstanceState.STOPPING and not stays(state, instance):
                reason = NodeReserved(node, ProjectRef(reservation.project))
                stop(state, out, instance, reason, now, requeue=True)


def _choose(state: State, event: Reserve) -> tuple[str, ...]:
    """The first nodes, those with the least work of other projects first."""
    project = event.reservation.project

    def foreign(name: str) -> int:
        return sum(state.spec_of(instance).project != project for instance in state.allocated[name].values())

    free = [
        name
        for name, node in state.nodes.items()
        if node.status == NodeStatus.READY
        and (not event.pool or node.facts.pool == event.pool)
        and project in state.fleet.owners.get(node.facts.pool, (project,))
        and not _conflicting(state, event.reservation, (name,))
    ]
    return tuple(sorted(free, key=lambda name: (foreign(name), name))[: event.count])


def _conflicting(state: State, wanted: Reservation, nodes: tuple[str, ...]) -> str:
    for name, other in state.reservations.items():
        before = bool(other.end_ms) and other.end_ms <= wanted.start_ms
        after = bool(wanted.end_ms) and wanted.end_ms <= other.start_ms
        both = sorted(set(nodes) & set(other.nodes))
        if both and not before and not after:
            return f"{both[0]} is reserved by {name} then"
    return ""
