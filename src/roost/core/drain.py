"""Taking nodes out of service, putting them back, and forgetting them."""

from roost.core.effects import Step
from roost.core.flaky import calm
from roost.core.keep import put
from roost.core.move import settle_node, stop
from roost.core.operate import frozen
from roost.core.state import State
from roost.model.errors import Conflict, NotFound
from roost.model.events import Drain, Remove, Resume
from roost.model.instance import Instance
from roost.model.node import Node


def drain(state: State, out: Step, event: Drain, now: int) -> None:
    """No new work begins there. Services move at once; jobs may finish until the deadline, then they move too."""
    node = _known(state, out, event.request, event.node)
    if node is None:
        return
    node.draining = True
    node.drain_until_ms = now + event.deadline_ms if event.deadline_ms else 0
    state.touch_node(node)
    settle_node(state, out, node, "drain asked for", now)
    if event.deadline_ms:
        state.at(node.drain_until_ms, "drain", node.name)
    begin_to_empty(state, out, node, now)
    rouse_node(state, node.name)
    out.reply(event.request, node.name)


def resume(state: State, out: Step, event: Resume, now: int) -> None:
    """Back into service. What was told to stop already goes on stopping and finds its place again."""
    node = _known(state, out, event.request, event.node)
    if node is None:
        return
    node.draining, node.drain_until_ms, node.cordoned = False, 0, False
    calm(state, node)
    state.touch_node(node)
    settle_node(state, out, node, "resume asked for", now)
    rouse_node(state, node.name)
    out.reply(event.request, node.name)


def remove(state: State, out: Step, event: Remove, now: int) -> None:
    """Forget a node that is out of touch and holds nothing, and its certificate with it: both, or neither."""
    if event.node not in state.nodes and event.node in state.kept.get("certificate", {}):  # joined, and never came
        put(state, "certificate", event.node, None)
        out.reply(event.request, event.node)
        return
    node = _known(state, out, event.request, event.node)
    if node is None:
        return
    if state.contacts[node.name].connected or state.held[node.name]:
        what = "connected" if state.contacts[node.name].connected else "holding work until its lease ends"
        out.reply(event.request, Conflict(f"node {node.name} is {what}; drain it and stop its agent first"))
        return
    forget_node(state, out, node)
    put(state, "certificate", node.name, None)
    out.reply(event.request, node.name)


def empty_node(state: State, out: Step, node: Node, now: int) -> None:
    """The time is up: stop what still runs on a node so that it moves elsewhere."""
    if frozen(state):
        return
    for token in sorted(state.held[node.name]):
        _send_away(state, out, node, state.held[node.name][token], now)


def begin_to_empty(state: State, out: Step, node: Node, now: int) -> None:
    """Jobs may finish if there is time. Services leave by themselves, within their limits: see `reconcile`."""
    if frozen(state):
        return
    for token in sorted(state.held[node.name]):
        instance = state.held[node.name][token]
        has_time = node.drain_until_ms > now and not instance.behind
        if not has_time and state.spec_of(instance).policy.kind != "service":
            _send_away(state, out, node, instance, now)


def _send_away(state: State, out: Step, node: Node, instance: Instance, now: int) -> None:
    if instance.state != "stopping":
        stop(state, out, instance, f"node {node.name} is draining", now, moving=True)


def rouse_node(state: State, name: str) -> None:
    """Let the services on a node see that they have to leave it, or need not any more."""
    for instance in state.held[name].values():
        if state.spec_of(instance).policy.kind == "service":
            state.rouse(instance.workload)


def forget_node(state: State, out: Step, node: Node) -> None:
    """The node is gone for good; a new hello would be a new node."""
    for held in state.contacts[node.name].ghosts.values():
        state.fleet.take(node.name, held, -1)
    state.fleet.leave(node.name)
    for index in (state.nodes, state.held, state.contacts):
        index.pop(node.name)
    state.dirty["node", node.name] = None
    out.nodes.append((node.name, "gone", "removed"))


def _known(state: State, out: Step, request: int, name: str) -> Node | None:
    node = state.nodes.get(name)
    if node is None:
        out.reply(request, NotFound(f"there is no node {name}"))
    return node
