"""How projects, pools and reservations look from outside: what operators set, and what has come of it."""

from typing import Any

import msgspec

from roost.core.scorers import ONE
from roost.core.state import State
from roost.model.project import Pool, Project, Reservation
from roost.server.views import unit_name

PERCENT = 100


class ProjectSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is set of a project. Quota: cpu_milli, gpu_milli, memory and disk in bytes, instances, others counted."""

    name: str
    weight: int
    quota: dict[str, int]
    borrow: bool
    counted: bool


class ProjectView(ProjectSetting, frozen=True, kw_only=True):
    """Who asks. Quota and held: cpu_milli, gpu_milli, memory and disk in bytes, instances, others counted.

    `share` is the largest part of the fleet that it holds of any resource, from 0 to 1, and `dominant` that resource.
    Of projects of one priority the one with the smallest share per weight goes first. `waiting` may be some moments
    old.
    """

    is_set: bool
    held: dict[str, int]
    waiting: int
    share: float
    dominant: str


class PoolRoom(msgspec.Struct, frozen=True):
    """How much of a resource is given away, how much the nodes have, and how much may be given away."""

    used: int
    total: int
    limit: int


class PoolSetting(msgspec.Struct, frozen=True, kw_only=True):
    """What is set of a pool, and how it stands.

    Labels, taints and places are what it says for its nodes; `strategy` "": the server's. `status` is ready, draining
    or failed; `failed_by` who said so: operator, or silence. `fail_after_ms` None: only an operator can say so.
    `projects`: for whom it is, as far as you may see them; none at all and not `restricted`: for everybody.
    """

    name: str
    strategy: str
    overcommit: dict[str, float]
    labels: dict[str, str] = {}
    taints: list[str] = []
    zone: str = ""
    rack: str = ""
    region: str = ""
    projects: list[str] = []
    restricted: bool = False
    when_failed: str = "move"
    fallback: str = ""
    fail_after_ms: int | None = None
    status: str = "ready"
    reason: str = ""
    failed_by: str = ""


class PoolView(PoolSetting, frozen=True, kw_only=True):
    """Nodes that belong together, with what is set of them. `resources` are those of its nodes that are online."""

    is_set: bool
    nodes: int
    ready: int
    resources: dict[str, PoolRoom]


class MaintenanceView(msgspec.Struct, frozen=True, kw_only=True):
    """Whether everything is held where it is, since when and why. Without `until_ms`: until somebody ends it."""

    on: bool
    reason: str = ""
    since_ms: int | None = None
    until_ms: int | None = None


class ReservationSetting(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that only one project may use. Without `end_ms`: until it is cancelled."""

    name: str
    project: str
    nodes: list[str]
    start_ms: int
    end_ms: int | None = None


class ReservationView(ReservationSetting, frozen=True, kw_only=True):
    """Nodes that only one project may use, and whether that is so at this moment."""

    active: bool


def project_view(state: State, name: str, waiting: int, totals: dict[str, int]) -> ProjectView:
    """A project as it stands. `totals`: what all nodes that are online have together."""
    known = state.projects.get(name)
    project = known or Project(name)
    held = state.charged.get(name, {})
    shares = {each: held[each] * ONE // total for each, total in totals.items() if total and held.get(each)}
    dominant = max(sorted(shares), key=shares.__getitem__, default="")
    return ProjectView(
        **_project_fields(project),
        is_set=known is not None,
        held={unit_name(each): amount for each, amount in sorted(held.items()) if amount},
        waiting=waiting,
        share=shares.get(dominant, 0) / ONE,
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
    known, fleet = state.pools.get(name), state.fleet
    pool = known or Pool(name)
    rooms: dict[str, PoolRoom] = {}
    online = [row for row in rows if fleet.online[row]]
    for resource in sorted({each for row in online for each in fleet.facts[row].resources}):
        total = sum(fleet.facts[row].resources.get(resource, 0) for row in online)
        used, limit = int(fleet.used[resource][online].sum()), int(fleet.total[resource][online].sum())
        rooms[unit_name(resource)] = PoolRoom(used, total, limit)
    return PoolView(
        **_pool_fields(pool),
        is_set=known is not None,
        nodes=len(rows),
        ready=sum(state.nodes[fleet.names[row]].status == "ready" for row in rows),
        resources=rooms,
    )


def _pool_fields(pool: Pool) -> dict[str, Any]:
    return {
        "name": pool.name,
        "strategy": pool.strategy,
        "overcommit": {each: percent / PERCENT for each, percent in sorted(pool.overcommit.items())},
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
        "quota": {unit_name(each): amount for each, amount in sorted(project.quota.items())},
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


def maintenance_view(state: State) -> MaintenanceView:
    """Maintenance as it stands."""
    meta = state.meta
    return MaintenanceView(
        on=bool(meta.maintenance),
        reason=meta.maintenance,
        since_ms=meta.maintenance_since_ms or None,
        until_ms=meta.maintenance_until_ms or None,
    )


_POOL = msgspec.msgpack.Decoder(Pool)
_PROJECT = msgspec.msgpack.Decoder(Project)
_RESERVATION = msgspec.msgpack.Decoder(Reservation)
