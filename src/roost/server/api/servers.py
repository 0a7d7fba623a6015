"""Servers: who leads, who stands by, and how the lead is handed over."""

from typing import Any

import msgspec
from litestar import Request, Response, get, post

from roost import __version__
from roost.model.errors import Conflict, NotFound
from roost.ports.store import ANYBODY
from roost.server import say
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import doors_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of

log = say.logger("leader")


class ServerView(msgspec.Struct, frozen=True, kw_only=True):
    """One server. `revision` is how far it has come; `now_ms` what its clock shows."""

    name: str
    role: str  # leader | standby | unknown
    api: str
    agents: str
    revision: int
    now_ms: int
    version: str
    failed: str = ""  # what is wrong with it, in words


class TimingView(msgspec.Struct, frozen=True, kw_only=True):
    """How fast leadership changes hands."""

    ttl_ms: int
    renew_ms: int
    retry_ms: int
    hold_ms: int


class ServersView(msgspec.Struct, frozen=True, kw_only=True):
    """All servers, the leader first. Alone on a store of its own, a server has no timing."""

    epoch: int
    items: list[ServerView]
    timing: TimingView | None = None


class LeaderView(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads."""

    leads: bool  # whether it is the server that was asked
    name: str = ""
    api: str = ""


class Heir(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who is to lead; nobody named: whoever is first."""

    to: str = ""


@get("/v1/servers", operation_id="list_servers", responses=refusals(403, 503))
async def list_servers(request: Request[Any, Any, Any]) -> ServersView:
    """All servers: who leads, who stands by, how far each has come."""
    doors = doors_of(request)
    engine, peers = doors.engine, doors.peers
    state = await engine.settled()
    if peers is None or engine.leadership is None:
        alone = ServerView(
            name="server", role="leader" if engine.ready else "unknown", api="", agents="", revision=state.revision,
            now_ms=engine.clock.now_ms(), version=__version__, failed=engine.failed,
        )  # fmt: skip
        return ServersView(epoch=engine.epoch, items=[alone])
    items = [
        ServerView(
            name=each.name, role=each.role or "unknown", api=each.api, agents=each.agents, revision=each.revision,
            now_ms=each.now_ms, version=each.version, failed="" if each.role == "standby" else each.failed,
        )
        for each in await peers.statuses()
    ]  # fmt: skip
    timing = TimingView(**engine.leadership.timing._asdict())
    return ServersView(epoch=engine.epoch, items=items, timing=timing)


@get("/leader", operation_id="leader", security=[{}], responses=refusals(503))
async def leader(request: Request[Any, Any, Any]) -> Response[LeaderView]:
    """200 from the server that leads, 503 from every other: for load balancers."""
    engine = doors_of(request).engine
    team = engine.leadership
    if team is None:
        return Response(LeaderView(leads=engine.ready), status_code=200 if engine.ready else 503)
    if engine.ready and team.is_sure():
        return Response(LeaderView(leads=True, name=team.identity.name, api=team.identity.api))
    known = team.election.leader
    other = known if known is not None and known.life != team.identity.life else None
    view = LeaderView(leads=False, name=other.name if other else "", api=other.api if other else "")
    return Response(view, status_code=503)


@post(
    "/v1/leader/transfer",
    operation_id="transfer_leader",
    operation_class=taking(Heir, required=False),
    status_code=202,
    responses=refusals(403, 404, 409, 413, 415, 422, 503),
)
async def transfer_leader(request: Request[Any, Any, Any]) -> LeaderView:
    """Let another server lead. Nothing that runs notices; requests wait for the moment that it takes."""
    doors = doors_of(request)
    heir = (await read_fields(request, Heir)).to
    team = doors.engine.leadership
    if team is None or doors.peers is None:
        raise Conflict("this server has its store for itself; there is nobody to hand over to", code="alone")
    standing_by = [each.name for each in doors.peers.attending.values()]
    if not standing_by:
        raise Conflict("no other server stands by", code="alone")
    if heir and heir not in standing_by:
        raise NotFound(f"no server {heir} stands by; there are {', '.join(sorted(standing_by))}", path="to")
    log.info("the lead is handed over", to=heir or "whoever is first", by=principal_of(request).name)
    if doors.hooks is not None:
        await doors.hooks.leave()  # so that the next leader tells nobody twice
    doors.engine.let_go(heir or ANYBODY)
    return LeaderView(leads=True, name=team.identity.name, api=team.identity.api)
