"""Handlers that are no single operation: probes of this server, and a drain with its preview."""

from typing import Annotated

from litestar import Response, get, post
from litestar.params import FromPath, QueryParameter

from roost.model.errors import NoService
from roost.schema.nodes import Draining, DrainPlanView, NodeView
from roost.schema.servers import Alive, LeaderView, Ready
from roost.server.http.api.bodies import read_fields, taking
from roost.server.http.api.context import ApiRequest, dispatcher_of, principal_of
from roost.server.http.api.errors import refusals
from roost.server.operations.fleet import nodes


@get("/livez", operation_id="livez", security=[{}])
async def livez(request: ApiRequest) -> Alive:
    """Whether the server answers at all."""
    return Alive()


@get("/readyz", operation_id="readyz", security=[{}], responses=refusals(503))
async def readyz(request: ApiRequest) -> Ready:
    """Whether the server is ready: it is the leader and can commit, or follows a leader. Otherwise the reason."""
    unready = dispatcher_of(request).context.engine.unready()
    if unready:
        raise NoService(unready)
    return Ready()


@get("/leader", operation_id="leader", security=[{}], responses=refusals(503))
async def leader(request: ApiRequest) -> Response[LeaderView]:
    """200 from the server that leads, 503 from every other: for load balancers."""
    engine = dispatcher_of(request).context.engine
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
    "/v1/nodes/{node:str}/drain",
    operation_id="drain",
    operation_class=taking(Draining, required=False),
    status_code=200,
    responses=refusals(403, 404, 413, 415, 422, 503),
)
async def drain(
    request: ApiRequest,
    node: FromPath[str],
    dry_run: Annotated[bool, QueryParameter(description="Only say where everything would go.")] = False,
) -> NodeView | DrainPlanView:
    """Drain a node: no new work, and running work finishes or moves.

    With `dry_run` nothing happens, and the answer is a DrainPlanView: where everything there would go.
    """
    fields = await read_fields(request, Draining)
    dispatcher, principal = dispatcher_of(request), principal_of(request)
    if dry_run:
        return await dispatcher.perform(principal, nodes.preview_drain, node, fields)
    return await dispatcher.perform(principal, nodes.drain, node, fields)


PROBES = [livez, readyz, leader]
