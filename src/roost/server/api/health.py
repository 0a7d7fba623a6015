"""Health: whether the server lives, whether it can decide, what it counts."""

from typing import Any

import msgspec
from litestar import Request, Response, get

from roost import __version__
from roost.core.strategies import STRATEGIES
from roost.model.errors import NoService
from roost.server.api.doors import Doors, doors_of
from roost.server.api.errors import refusals
from roost.server.history import Standing
from roost.server.setting_views import MaintenanceView, maintenance_view


class Alive(msgspec.Struct, frozen=True):
    """It is."""

    alive: bool = True


class Ready(msgspec.Struct, frozen=True):
    """It is."""

    ready: bool = True


class StatusView(msgspec.Struct, frozen=True, kw_only=True):
    """How the server stands. The counts of a large state may be some moments old."""

    version: str
    revision: int
    ready: bool
    now_ms: int
    strategy: str
    strategies: list[str]
    lease_ms: int
    patience_ms: int
    preempt_margin: int
    agents_connected: int
    nodes: dict[str, int]
    workloads: dict[str, int]
    instances: dict[str, int]
    maintenance: MaintenanceView
    history: Standing | None = None  # None: none is kept
    controllers: list[str] = []  # where controllers connect over gRPC, HOST:PORT of each server


@get("/livez", operation_id="livez", security=[{}])
async def livez(request: Request[Any, Any, Any]) -> Alive:
    """Whether the server answers at all."""
    return Alive()


@get("/readyz", operation_id="readyz", security=[{}], responses=refusals(503))
async def readyz(request: Request[Any, Any, Any]) -> Ready:
    """Whether the server can be asked: it decides itself, or follows a server that does. If not, why."""
    engine = doors_of(request).engine
    if not engine.ready and not engine.is_following:
        raise NoService(engine.failed or "the server is starting")
    return Ready()


@get("/metrics", operation_id="metrics", media_type="text/plain; version=0.0.4", responses=refusals(403))
async def metrics(request: Request[Any, Any, Any]) -> Response[str]:
    """Counters for Prometheus."""
    page = doors_of(request).metrics.page()
    return Response(page, media_type="text/plain; version=0.0.4")  # type: ignore[arg-type]


@get("/v1/status", operation_id="status", responses=refusals(403, 503))
async def status(request: Request[Any, Any, Any]) -> StatusView:
    """How the server stands, in numbers."""
    doors = doors_of(request)
    state = await doors.engine.settled()
    counts = doors.census.of(state)
    return StatusView(
        version=__version__,
        revision=state.revision,
        ready=doors.engine.ready,
        now_ms=doors.engine.clock.now_ms(),
        strategy=state.settings.strategy,
        strategies=sorted(STRATEGIES),
        lease_ms=state.settings.lease_ms,
        patience_ms=state.settings.patience_ms,
        preempt_margin=state.settings.preempt_margin,
        agents_connected=doors.metrics.connected,
        nodes=counts.nodes,
        workloads=counts.workloads,
        instances=counts.instances,
        maintenance=maintenance_view(state),
        history=doors.history.standing() if doors.history is not None else None,
        controllers=_controllers(doors),
    )


def _controllers(doors: Doors) -> list[str]:
    others = doors.peers.attending.values() if doors.peers is not None else ()
    return [each for each in (doors.controller, *(other.controller for other in others)) if each]
