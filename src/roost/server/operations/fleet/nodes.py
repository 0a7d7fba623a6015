"""Nodes: list, look at, keep new work from, take out of service, put back, forget."""

from bisect import bisect_right
from itertools import islice

from roost.core.explain.drain_preview import DrainPreview, drain_preview
from roost.model.events import Cordon, Drain, Remove, Uncordon
from roost.model.reasons.subjects import InstanceRef
from roost.model.spec.units import duration_ms
from roost.model.states import NodeStatus
from roost.schema.nodes import Draining, DrainPlanView, LeavingView, NodeDetail, NodePage, NodeView
from roost.schema.reason_text import render_text
from roost.server.operations.context import AsOf, Call, state_at
from roost.server.operations.parameters import PAGE_MAX, After, At, Limit
from roost.server.views.view_of import view_of
from roost.server.views.work import node_detail, node_view


async def list_nodes(
    call: Call, status: NodeStatus | None = None, limit: Limit = PAGE_MAX, after: After = "", at: At = ""
) -> AsOf[NodePage]:
    """List nodes by name."""
    seen = await state_at(call, at)
    state, names = seen.state, seen.state.fleet.names
    wanted = (name for name in names[bisect_right(names, after) :] if not status or state.nodes[name].status == status)
    found = list(islice(wanted, limit + 1))
    items = [node_view(state, name) for name in found[:limit]]
    return seen.shows(NodePage(state.revision, items, found[limit - 1] if len(found) > limit else None))


async def get_node(call: Call, node: str, at: At = "") -> AsOf[NodeDetail]:
    """Show a node: its facts, its instances, its story."""
    seen = await state_at(call, at)
    return seen.shows(node_detail(seen.state, node, call.redactor.visible))


async def drain(call: Call, node: str, fields: Draining) -> NodeView:
    """Drain a node: no new work. Jobs may finish until the deadline, services move."""
    deadline_ms = _deadline_ms(fields)
    await call.ask(lambda number: Drain(number, node, deadline_ms))
    return node_view(call.engine.state, node)


async def preview_drain(call: Call, node: str, fields: Draining) -> DrainPlanView:
    """Where everything on a node would go if it was drained now. Nothing happens."""
    deadline_ms = _deadline_ms(fields)
    return await call.context.questions.ask(
        lambda state: _plan_view(drain_preview(state, node, deadline_ms), state.revision)
    )


def _deadline_ms(fields: Draining) -> int | None:
    return None if fields.deadline is None else duration_ms(fields.deadline, "deadline")


def _plan_view(plan: DrainPreview, revision: int) -> DrainPlanView:
    leaving = [
        view_of(LeavingView, move, InstanceRef.of(move.instance), message=render_text(move.text)) for move in plan.moves
    ]
    return DrainPlanView(node=plan.node, revision=revision, whole=plan.is_whole, leaving=leaving)


async def cordon(call: Call, node: str) -> NodeView:
    """Cordon a node: no new work; running work stays."""
    await call.ask(lambda number: Cordon(number, node))
    return node_view(call.engine.state, node)


async def uncordon(call: Call, node: str) -> NodeView:
    """Put a cordoned, drained or flaky node back into service."""
    await call.ask(lambda number: Uncordon(number, node))
    return node_view(call.engine.state, node)


async def remove(call: Call, node: str) -> None:
    """Delete a disconnected node without work."""
    await call.ask(lambda number: Remove(number, node))
