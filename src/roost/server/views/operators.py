"""How projects, pools and reservations look from outside: what operators set, and what has come of it."""

from collections.abc import Sequence

import msgspec

from roost.core.placement.scorers import SCORE_MAX
from roost.core.state.records import FileUsage
from roost.core.state.state import State
from roost.model.records.project import FILE_BYTES, FILES, Pool, Project, Reservation
from roost.model.states import NodeStatus
from roost.schema.nodes import MaintenanceView
from roost.schema.pools import PoolRoom, PoolSetting, PoolView
from roost.schema.projects import ProjectSetting, ProjectView, ReservationSetting, ReservationView
from roost.schema.reason_text import Visible, render_note
from roost.server.views.view_of import view_of
from roost.server.views.work import unit_name

PERCENT = 100


def project_view(state: State, name: str, waiting: int, totals: dict[str, int]) -> ProjectView:
    """A project with its allocation. `totals`: resources of all online nodes."""
    allocated, kept = state.project_usage.get(name, {}), state.file_usage.get(name, FileUsage())
    shares = {
        resource: allocated[resource] * SCORE_MAX // total
        for resource, total in totals.items()
        if total and allocated.get(resource)
    }
    dominant = max(sorted(shares), key=shares.__getitem__, default="")
    return view_of(
        ProjectView,
        project_setting(state.projects.get(name, Project(name))),
        is_set=name in state.projects,
        allocated={
            unit_name(name): amount
            for name, amount in sorted((allocated | {FILES: kept.files, FILE_BYTES: kept.size}).items())
            if amount
        },
        waiting=waiting,
        share=shares.get(dominant, 0) / SCORE_MAX,
        dominant=unit_name(dominant),
    )


def pool_views(state: State, names: Sequence[str]) -> list[PoolView]:
    """Some pools with their nodes, found in one pass over the fleet."""
    fleet = state.fleet
    rows: dict[str, list[int]] = {name: [] for name in names}
    for row, facts in enumerate(fleet.facts):
        if facts.pool in rows:
            rows[facts.pool].append(row)
    return [_pool_view(state, name, rows[name]) for name in names]


def reservation_view(reservation: Reservation, now_ms: int) -> ReservationView:
    is_active = reservation.start_ms <= now_ms and (not reservation.end_ms or now_ms < reservation.end_ms)
    return view_of(ReservationView, reservation, active=is_active)


def setting_view(kind: str, record: bytes) -> PoolSetting | ProjectSetting | ReservationSetting:
    """The stored settings, without what changes all the time."""
    if kind == "pool":
        return pool_setting(msgspec.msgpack.decode(record, type=Pool))
    if kind == "project":
        return project_setting(msgspec.msgpack.decode(record, type=Project))
    return view_of(ReservationSetting, reservation_of(record))


def reservation_of(record: bytes) -> Reservation:
    return msgspec.msgpack.decode(record, type=Reservation)


def pool_names(state: State) -> set[str]:
    return {facts.pool for facts in state.fleet.facts} | set(state.pools)


def _pool_view(state: State, name: str, rows: list[int]) -> PoolView:
    fleet = state.fleet
    rooms: dict[str, PoolRoom] = {}
    online = [row for row in rows if fleet.online[row]]
    for resource in sorted({resource for row in online for resource in fleet.facts[row].resources}):
        total = sum(fleet.facts[row].resources.get(resource, 0) for row in online)
        used, limit = int(fleet.used[resource][online].sum()), int(fleet.total[resource][online].sum())
        rooms[unit_name(resource)] = PoolRoom(used, total, limit)
    return view_of(
        PoolView,
        pool_setting(state.pools.get(name, Pool(name))),
        is_set=name in state.pools,
        nodes=len(rows),
        ready=sum(state.nodes[fleet.names[row]].status == NodeStatus.READY for row in rows),
        resources=rooms,
    )


def pool_setting(pool: Pool) -> PoolSetting:
    overcommit = {name: percent / PERCENT for name, percent in sorted(pool.overcommit.items())}
    return view_of(PoolSetting, pool, overcommit=overcommit, restricted=bool(pool.projects))


def project_setting(project: Project) -> ProjectSetting:
    quota = {unit_name(resource): amount for resource, amount in sorted(project.quota.items())}
    return view_of(ProjectSetting, project, quota=quota)


def maintenance_view(state: State, visible: Visible | None = None) -> MaintenanceView:
    meta = state.meta
    return MaintenanceView(
        on=bool(meta.maintenance),
        reason=render_note(meta.maintenance, visible),
        since_ms=meta.maintenance_since_ms or None,
        until_ms=meta.maintenance_until_ms or None,
    )
