"""How projects, pools and reservations look from outside: what operators set, and what has come of it."""

from typing import Any

import msgspec

from roost.core.placement.scorers import SCORE_MAX
from roost.core.state.state import State
from roost.model.records.project import Pool, Project, Reservation
from roost.model.states import NodeStatus
from roost.schema.nodes import MaintenanceView
from roost.schema.pools import PoolRoom, PoolSetting, PoolView
from roost.schema.projects import ProjectSetting, ProjectView, ReservationSetting, ReservationView
from roost.schema.reason_text import Visible, render_note
from roost.server.views.work import unit_name

PERCENT = 100


def project_view(state: State, name: str, waiting: int, totals: dict[str, int]) -> ProjectView:
    """A project as it stands. `totals`: what all nodes that are online have together."""
    existing = state.projects.get(name)
    project = existing or Project(name)
    allocated = state.project_usage.get(name, {})
    shares = {
        resource: allocated[resource] * SCORE_MAX // total
        for resource, total in totals.items()
        if total and allocated.get(resource)
    }
    dominant = max(sorted(shares), key=shares.__getitem__, default="")
    return ProjectView(
        **_project_fields(project),
        is_set=existing is not None,
        allocated={unit_name(name): amount for name, amount in sorted(allocated.items()) if amount},
        waiting=waiting,
        share=shares.get(dominant, 0) / SCORE_MAX,
        dominant=unit_name(dominant),
    )


def pool_views(state: State, names: list[str]) -> list[PoolView]:
    """Some pools as they stand; all nodes are looked at once."""
    fleet = state.fleet
    rows: dict[str, list[int]] = {name: [] for name in names}
    for row, facts in enumerate(fleet.facts):
        if facts.pool in rows:
            rows[facts.pool].append(row)
    return [_pool_view(state, name, rows[name]) for name in names]


def reservation_view(reservation: Reservation, now_ms: int) -> ReservationView:
    """A reservation as it stands."""
    is_active = reservation.start_ms <= now_ms and (not reservation.end_ms or now_ms < reservation.end_ms)
    return ReservationView(**_reservation_fields(reservation), active=is_active)


def setting_view(kind: str, record: bytes) -> PoolSetting | ProjectSetting | ReservationSetting:
    """What was set, as it was stored; nothing of what has come of it, which changes all the time."""
    if kind == "pool":
        return PoolSetting(**_pool_fields(_POOL.decode(record)))
    if kind == "project":
        return ProjectSetting(**_project_fields(_PROJECT.decode(record)))
    return ReservationSetting(**_reservation_fields(reservation_of(record)))


def reservation_of(record: bytes) -> Reservation:
    """A reservation as it was stored."""
    return _RESERVATION.decode(record)


def pool_names(state: State) -> set[str]:
    """Pools that have a node or a setting."""
    return {facts.pool for facts in state.fleet.facts} | set(state.pools)


def _pool_view(state: State, name: str, rows: list[int]) -> PoolView:
    existing, fleet = state.pools.get(name), state.fleet
    pool = existing or Pool(name)
    rooms: dict[str, PoolRoom] = {}
    online = [row for row in rows if fleet.online[row]]
    for resource in sorted({resource for row in online for resource in fleet.facts[row].resources}):
        total = sum(fleet.facts[row].resources.get(resource, 0) for row in online)
        used, limit = int(fleet.used[resource][online].sum()), int(fleet.total[resource][online].sum())
        rooms[unit_name(resource)] = PoolRoom(used, total, limit)
    return PoolView(
        **_pool_fields(pool),
        is_set=existing is not None,
        nodes=len(rows),
        ready=sum(state.nodes[fleet.names[row]].status == NodeStatus.READY for row in rows),
        resources=rooms,
    )


def _pool_fields(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.name,
        "strategy": pool.strategy,
        "overcommit": {name: percent / PERCENT for name, percent in sorted(pool.overcommit.items())},
        "labels": pool.labels,
        "taints": list(pool.taints),
        "zone": pool.zone,
        "rack": pool.rack,
        "region": pool.region,
        "projects": list(pool.projects),
        "restricted": bool(pool.projects),
        "when_failed": pool.when_failed,
        "fallback": pool.fallback,
        "fail_after_ms": pool.fail_after_ms or None,
        "status": pool.status,
        "reason": pool.reason,
        "failed_by": pool.failed_by,
    }


def _project_fields(project: Project) -> dict[str, Any]:
    return {
        "name": project.name,
        "weight": project.weight,
        "quota": {unit_name(resource): amount for resource, amount in sorted(project.quota.items())},
        "borrow": project.borrow,
        "counted": project.counted,
    }


def _reservation_fields(reservation: Reservation) -> dict[str, Any]:
    return {
        "name": reservation.name,
        "project": reservation.project,
        "nodes": list(reservation.nodes),
        "start_ms": reservation.start_ms,
        "end_ms": reservation.end_ms or None,
    }


def maintenance_view(state: State, visible: Visible | None = None) -> MaintenanceView:
    """Whether there is maintenance, since when and why."""
    meta = state.meta
    return MaintenanceView(
        on=bool(meta.maintenance),
        reason=render_note(meta.maintenance, visible),
        since_ms=meta.maintenance_since_ms or None,
        until_ms=meta.maintenance_until_ms or None,
    )


_POOL = msgspec.msgpack.Decoder(Pool)
_PROJECT = msgspec.msgpack.Decoder(Project)
_RESERVATION = msgspec.msgpack.Decoder(Reservation)
