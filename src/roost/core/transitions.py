"""Transitions of instances and nodes, with their stories, allocations and counts. Nothing else changes a state."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from roost.core.orders import stop_order
from roost.core.state.liveness import NodeLiveness
from roost.core.state.outcome import Paced, Step
from roost.core.state.state import State, is_over
from roost.core.state.timers import TimerKind
from roost.core.state.usage import charge_usage
from roost.core.watch import watch_pool
from roost.model.limits import STORY_MAX
from roost.model.protocol import Drop
from roost.model.reasons.nodes import DrainCompleted, NodeRemoved
from roost.model.reasons.reason import Reason, share
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.transition import (
    InstanceTransition,
    InstanceTransitioned,
    NodeTransition,
    NodeTransitioned,
    Transitioned,
)
from roost.model.records.workload import Workload
from roost.model.states import ABSENT, ALLOCATED, FINISHED, MOVES, NODE_MOVES, InstanceState, NodeStatus
from roost.ports.store import Change


def move(state: State, out: Step, instance: Instance, to: InstanceState, reason: Reason, at_ms: int) -> None:
    """Bring an instance into a state, and allocate or release its resources."""
    before = instance.state
    assert to in MOVES[before], f"{instance.key} cannot go from {before} to {to} ({reason}): {instance.story}"
    spec = state.spec_of(instance)
    counts = state.progress[instance.workload].counts
    counts[before] -= 1
    counts[to] = counts.get(to, 0) + 1
    if to in ALLOCATED and before not in ALLOCATED:
        state.allocate(spec, instance)
    elif before in ALLOCATED and to not in ALLOCATED:
        state.release(spec, instance)
        charge_usage(state, spec, instance, at_ms)
        activate(state, out, instance)
        instance.requeue_after_stop = False
        out.order(instance.node, Drop(instance.token))
        node = state.nodes[instance.node]
        if node.status == NodeStatus.DRAINING and not state.allocated[node.name]:
            refresh_status(state, out, node, DrainCompleted(), at_ms)
    if before == InstanceState.RUNNING:
        instance.ready_since_ms, instance.health_failure = 0, None
    if to in _MILESTONES:
        state.notify_dependents(instance.workload, instance.index)
    if instance.workload in state.reconciling and to != InstanceState.PLACED:
        state.dirty_services[instance.workload] = None
    reason = share(reason)  # hundreds of thousands of stories have the same few reasons
    instance.state = to
    instance.since_ms = at_ms
    instance.reason = reason
    note_instance(state, instance, before, reason, at_ms)
    state.touch_instance(instance)
    if to in FINISHED:
        instance.finished_ms = at_ms
        finish_if_over(state, state.workloads[instance.workload], at_ms)


DIRTY_PER_UNIT = 5  # changed records whose stories are looked at, per unit of work
DIRTY_AT_ONCE = 50
_MILESTONES = FINISHED | {InstanceState.RUNNING}  # dependents may wait for these


def stop(state: State, out: Step, instance: Instance, reason: Reason, now: int, *, requeue: bool = False) -> None:
    """Order the agent to stop an attempt. The allocation stays until the agent confirms, or the node is lost."""
    instance.requeue_after_stop = requeue
    move(state, out, instance, InstanceState.STOPPING, reason, now)
    out.order(instance.node, stop_order(state, instance))


def note_instance(
    state: State, instance: Instance, before: InstanceState | None, reason: Reason, at_ms: int
) -> None:  # fmt: skip
    """Add a line to the story of an instance; the oldest lines are dropped."""
    line = InstanceTransition(
        at_ms, before, instance.state, reason, state.revision + 1, instance.attempt, instance.node,
        instance.exit_code, instance.signal, instance.version, instance.log_size, instance.stderr_size, instance.step,
        instance.usage,
    )  # fmt: skip
    instance.story = (*instance.story[1 - STORY_MAX :], line)


def restate(state: State, instance: Instance, reason: Reason, at_ms: int) -> None:
    """There is more to say about an instance whose state stays."""
    instance.reason = reason
    note_instance(state, instance, instance.state, reason, at_ms)
    state.touch_instance(instance)


def note_node(state: State, node: Node, before: NodeStatus, reason: Reason, at_ms: int) -> None:
    line = NodeTransition(at_ms, before, node.status, reason, state.revision + 1)
    node.story = (*node.story[1 - STORY_MAX :], line)


def new_transitions(state: State) -> Paced[list[Transitioned]]:
    """The transitions of this step, of instances and nodes that still have a record."""
    found: list[Transitioned] = []
    records = list(state.dirty.items())
    for first in range(0, len(records), DIRTY_AT_ONCE):
        found += _transitions_of(records[first : first + DIRTY_AT_ONCE], state.revision, state.revision + 1)
        yield DIRTY_AT_ONCE // DIRTY_PER_UNIT
    return found


def followed_transitions(state: State, changes: Sequence[Change], since: int) -> list[Transitioned]:
    """The transitions in commits of another server after a revision, from the stories."""
    found: list[Transitioned] = []
    for change in changes:
        if change.kind == "node" and change.value is None:
            gone = NodeTransition(state.now_ms, None, NodeStatus.GONE, NodeRemoved(), state.revision)
            found.append(NodeTransitioned(change.key, gone))
    records: dict[str, Mapping[str, Any]] = {"instance": state.instances, "node": state.nodes}
    changed = ((change.record, records[change.kind].get(change.key)) for change in changes if change.kind in records)
    return found + _transitions_of(changed, since, state.revision)


def _transitions_of(records: Iterable[tuple[tuple[str, str], Any]], since: int, until: int) -> list[Transitioned]:
    found: list[Transitioned] = []
    for (kind, key), record in records:
        make = _TRANSITIONED.get(kind)
        if make is None or record is None:
            continue
        story = record.story
        if not story or story[-1].revision <= since:
            continue
        if len(story) == 1 or story[-2].revision <= since:  # as most: one line is new
            story = story[-1:]
        found += [make(key, line) for line in story if since < line.revision <= until]
    return found


_TRANSITIONED: dict[str, Callable[[str, Any], Transitioned]] = {
    "instance": InstanceTransitioned,
    "node": NodeTransitioned,
}


def finish_if_over(state: State, workload: Workload, at_ms: int) -> None:
    """Finish a workload if all its instances have finished and none will start."""
    if workload.finished_ms or not is_over(state, workload):
        return
    key = workload.key
    workload.finished_ms = max(at_ms, 1)
    state.finished[key] = None
    state.finished_instances += sum(state.progress_of(workload).counts.values())
    state.at(workload.finished_ms + workload.policy.retention_ms, TimerKind.SWEEP, key)
    state.set_pending_conditions(workload, ())
    state.note_group(workload)
    if key in state.companions:
        state.ended_owners[key] = None
    state.notify_dependents(key)
    if workload.parent:
        state.ended_runs[workload.parent] = None
    state.touch_workload(workload)


def reopen(state: State, workload: Workload) -> None:
    if workload.finished_ms:
        workload.finished_ms = 0
        state.note_group(workload)
        state.finished.pop(workload.key)
        state.finished_instances -= sum(state.progress_of(workload).counts.values())
        state.touch_workload(workload)


def refresh_status(
    state: State, out: Step, node: Node, reason: Reason, at_ms: int, *, absent: NodeStatus | None = None
) -> None:
    """Derive the status of a node: out of touch, leaving service, or ready. `absent`: it is stopped or lost now."""
    if not state.liveness[node.name].in_touch:
        to = absent or (node.status if node.status in ABSENT else NodeStatus.SUSPECT)
    elif node.draining:
        to = NodeStatus.DRAINING if state.allocated[node.name] else NodeStatus.DRAINED
    else:
        to = NodeStatus.CORDONED if node.cordoned else NodeStatus.READY
    if to != node.status:
        assert to in NODE_MOVES[node.status], f"node {node.name} cannot go from {node.status} to {to}: {node.story}"
        before, node.status = node.status, to
        note_node(state, node, before, reason, at_ms)
        state.touch_node(node)
    state.open_node(node)
    watch_pool(state, node.facts.pool)


def liveness_of(state: State, name: str, session: int) -> NodeLiveness | None:
    """The liveness of a node if this is its session; messages of older sessions are ignored."""
    node = state.nodes.get(name)
    if node is None or node.session != session or node.status in ABSENT:
        return None
    return state.liveness[name]


RETRACT_AFTER_MS = 500  # a prefilled attempt is retracted after this


def prefill(state: State, instance: Instance, other: Instance) -> None:
    assert other.token not in state.prefilled, f"an attempt is prefilled behind {other.key} already"
    instance.prefilled_behind = other.token
    state.prefilled[other.token] = instance
    if other.node not in state.retract_timers:
        state.retract_timers.add(other.node)
        state.at(state.now_ms + RETRACT_AFTER_MS, TimerKind.RETRACT, other.node)


def activate(state: State, out: Step, gone: Instance) -> None:
    """After an attempt has ended, its successor gets the allocation, or is prefilled behind the predecessor."""
    follower = state.prefilled.pop(gone.token, None)
    if gone.prefilled_behind:
        state.prefilled.pop(gone.prefilled_behind, None)
    if follower is not None:
        follower.prefilled_behind = gone.prefilled_behind
        if gone.prefilled_behind:
            state.prefilled[gone.prefilled_behind] = follower
        else:
            state.allocate(state.spec_of(follower), follower)
            out.activated.append(follower)
        state.touch_instance(follower)
    gone.prefilled_behind = 0
