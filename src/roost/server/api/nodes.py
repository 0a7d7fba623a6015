"""Nodes: list, look at, keep new work from, take out of service, put back, forget."""

from bisect import bisect_right
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, get, post
from litestar.params import FromPath, QueryParameter

from roost.core.evacuate import Evacuation, evacuation
from roost.core.state import State
from roost.model.events import Cordon, Drain, Remove, Resume
from roost.model.states import NodeState
from roost.model.units import duration_ms
from roost.server.api.at import AT_HEADERS, At, look
from roost.server.api.bodies import read_fields, taking
from roost.server.api.doors import ask, doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.views import NodeDetail, NodeView, node_detail, node_view

PAGE_MAX = 1_000  # ten milliseconds of work

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]


class NodePage(msgspec.Struct, frozen=True):
    """Nodes by name. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[NodeView]
    next: str | None = None


class Draining(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How long jobs may finish before they are moved, like `10m`; nothing: they are moved at once."""

    deadline: int | float | str | None = None


class LeavingView(msgspec.Struct, frozen=True, kw_only=True):
    """Where one instance would go: a node, or none, with a code as `why` has it, and words. `may_finish`: it is a job
    and has until the deadline; only what still runs then has to go."""

    project: str
    name: str
    index: int
    node: str
    strategy: str
    code: str
    words: str
    may_finish: bool


class DrainPlanView(msgspec.Struct, frozen=True, kw_only=True):
    """What a drain would do. `whole`: everything that has to go at once has a place."""

    node: str
    revision: int
    whole: bool
    leaving: list[LeavingView]


@get("/v1/nodes", operation_id="list_nodes", responses=refusals(403, 404, 422, 503), response_headers=AT_HEADERS)
async def list_nodes(
    request: Request[Any, Any, Any],
    status: Annotated[NodeState | None, QueryParameter()] = None,
    limit: PageLimit = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
    at: At = "",
) -> Response[NodePage]:
    """List nodes by name."""
    seen = await look(request, at)
    return seen.shows(_page(seen.state, status, limit, after))


def _page(state: State, status: NodeState | None, limit: int, after: str) -> NodePage:
    names = state.fleet.names
    items: list[NodeView] = []
    for name in names[bisect_right(names, after) :]:
        if len(items) == limit:
            return NodePage(state.revision, items, items[-1].name)
        if not status or state.nodes[name].status == status:
            items.append(node_view(state, name))
    return NodePage(state.revision, items)


@get(
    "/v1/nodes/{node:str}",
    operation_id="get_node",
    responses=refusals(403, 404, 422, 503),
    response_headers=AT_HEADERS,
)
async def get_node(request: Request[Any, Any, Any], node: FromPath[str], at: At = "") -> Response[NodeDetail]:
    """Look at a node: what it offers, what runs there, its story."""
    seen = await look(request, at)
    return seen.shows(veil_of(request).node(node_detail(seen.state, node)))


@post(
    "/v1/nodes/{node:str}/drain",
    operation_id="drain",
    operation_class=taking(Draining, required=False),
    status_code=200,
    responses=refusals(403, 404, 413, 415, 422, 503),
)
async def drain(
    request: Request[Any, Any, Any],
    node: FromPath[str],
    dry_run: Annotated[bool, QueryParameter(description="Only say where everything would go.")] = False,
) -> NodeView | DrainPlanView:
    """Take a node out of service: no new work goes there, and what runs finishes or moves.

    With `dry_run` nothing happens, and the answer is a DrainPlanView: where everything there would go.
    """
    deadline = (await read_fields(request, Draining)).deadline
    deadline_ms = 0 if deadline is None else duration_ms(deadline, "deadline")
    engine = doors_of(request).engine
    if dry_run:
        state = await engine.settled()
        return _plan_view(evacuation(state, node, deadline_ms), state.revision)
    await ask(request, lambda number: Drain(number, node, deadline_ms))
    return node_view(engine.state, node)


def _plan_view(plan: Evacuation, revision: int) -> DrainPlanView:
    leaving = []
    for each in plan.leaving:
        workload, _, index = each.instance.rpartition(".")
        project, _, name = workload.partition("/")
        leaving.append(
            LeavingView(
                project=project, name=name, index=int(index), node=each.node, strategy=each.strategy, code=each.code,
                words=each.words, may_finish=each.may_finish,
            )
        )  # fmt: skip
    return DrainPlanView(node=plan.node, revision=revision, whole=plan.is_whole, leaving=leaving)


@post("/v1/nodes/{node:str}/cordon", operation_id="cordon", status_code=200, responses=refusals(403, 404, 503))
async def cordon(request: Request[Any, Any, Any], node: FromPath[str]) -> NodeView:
    """Keep new work from a node; what runs there stays. Resume ends it."""
    engine = doors_of(request).engine
    await ask(request, lambda number: Cordon(number, node))
    return node_view(engine.state, node)


@post("/v1/nodes/{node:str}/resume", operation_id="resume", status_code=200, responses=refusals(403, 404, 503))
async def resume(request: Request[Any, Any, Any], node: FromPath[str]) -> NodeView:
    """Put a node back into service: one that drains, is cordoned, or is avoided because runs failed there."""
    engine = doors_of(request).engine
    await ask(request, lambda number: Resume(number, node))
    return node_view(engine.state, node)


@delete("/v1/nodes/{node:str}", operation_id="remove", status_code=204, responses=refusals(403, 404, 409, 503))
async def remove(request: Request[Any, Any, Any], node: FromPath[str]) -> None:
    """Forget a node that is out of touch and runs nothing."""
    await ask(request, lambda number: Remove(number, node))
