"""Taking nodes out of service, putting them back, and forgetting them."""

from roost.core.lifecycle.restarts import attempts_on, release_orphans
from roost.core.nodes.flaky import clear_flaky
from roost.core.queue.home import stays
from roost.core.records import put
from roost.core.state.outcome import Step
from roost.core.state.state import State, in_maintenance
from roost.core.state.timers import TimerKind
from roost.core.transitions import note_instance, refresh_status, stop
from roost.model.errors import Conflict
from roost.model.events import Cordon, Drain, Remove, Uncordon
from roost.model.reasons.attempts import NodeDraining
from roost.model.reasons.nodes import CordonRequested, DrainRequested, NodeRemoved, UncordonRequested
from roost.model.reasons.power import VmStays
from roost.model.records.node import Node
from roost.model.records.transition import NodeTransition, NodeTransitioned
from roost.model.states import InstanceState, NodeStatus, WorkloadKind


def drain(state: State, out: Step, event: Drain, now: int) -> None:
    """Services move within their limits. Jobs may finish, until the deadline if there is one."""
    node = state.known_node(event.node)
    node.draining, node.drain_stops_jobs = True, event.deadline_ms == 0
    node.drain_until_ms = now + event.deadline_ms if event.deadline_ms else 0
    state.touch_node(node)
    refresh_status(state, out, node, DrainRequested(out.principal), now)
    if event.deadline_ms:
        state.at(node.drain_until_ms, TimerKind.DRAIN, node.name)
    move_away(state, out, node, now)
    mark_node_services_dirty(state, node.name)
    out.reply(event.request, node.name)


def uncordon(state: State, out: Step, event: Uncordon, now: int) -> None:
    """Back into service. Attempts that are stopping already go on stopping."""
    node = state.known_node(event.node)
    node.draining, node.drain_until_ms, node.drain_stops_jobs, node.cordoned = False, 0, False, False
    clear_flaky(state, node)
    state.touch_node(node)
    refresh_status(state, out, node, UncordonRequested(out.principal), now)
    mark_node_services_dirty(state, node.name)
    out.reply(event.request, node.name)


def remove(state: State, out: Step, event: Remove, now: int) -> None:
    certificates = state.opaque_records.get("certificate", {})
    if event.node not in state.nodes and event.node in certificates:  # it has enrolled, and never connected
        put(state, "certificate", event.node, None)
        out.reply(event.request, event.node)
        return
    node = state.known_node(event.node)
    if state.liveness[node.name].connected or state.allocated[node.name]:
        what = "connected" if state.liveness[node.name].connected else "holding work until its lease ends"
        raise Conflict(f"node {node.name} is {what}; drain it and stop its agent first")
    forget_node(state, out, node)
    put(state, "certificate", node.name, None)
    out.reply(event.request, node.name)


def move_away(state: State, out: Step, node: Node, now: int, *, is_due: bool = False) -> None:
    """Jobs may finish, unless they have no time. Services leave within their limits (`reconcile`), until it is due.

    Virtual machines never end by themselves: they leave at once, or stay.
    """
    if in_maintenance(state):
        return
    for instance in attempts_on(state, node.name):
        has_time = not (node.drain_stops_jobs or 0 < node.drain_until_ms <= now or instance.prefilled_behind)
        kind = state.spec_of(instance).policy.kind
        may_stay = (has_time and kind != WorkloadKind.VM) or kind == WorkloadKind.SERVICE
        if stays(state, instance):
            note_instance(state, instance, instance.state, VmStays(state.spec_of(instance).policy.move), now)
            state.touch_instance(instance)
        elif instance.state != InstanceState.STOPPING and (is_due or not may_stay):
            stop(state, out, instance, NodeDraining(node.name), now, requeue=True)


def mark_node_services_dirty(state: State, name: str) -> None:
    for instance in state.allocated[name].values():
        if state.spec_of(instance).policy.kind == WorkloadKind.SERVICE:
            state.mark_dirty(instance.workload)


def forget_node(state: State, out: Step, node: Node) -> None:
    release_orphans(state, node.name)
    state.fleet.leave(node.name)
    for index in (state.nodes, state.allocated, state.liveness):
        index.pop(node.name)
    state.dirty["node", node.name] = None
    reason, revision = NodeRemoved(out.principal), state.revision + 1
    gone = NodeTransition(state.now_ms, node.status, NodeStatus.GONE, reason, revision)
    out.transitions.append(NodeTransitioned(node.name, gone))


def cordon(state: State, out: Step, event: Cordon, now: int) -> None:
    node = state.known_node(event.node)
    if not node.cordoned:
        node.cordoned = True
        state.touch_node(node)
        refresh_status(state, out, node, CordonRequested(out.principal), now)
    out.reply(event.request, node.name)
