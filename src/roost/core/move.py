"""The one place where an instance or a node changes its state: the table, the story, the room it takes, the counts."""

from sys import intern

from roost.core.ahead import step_up
from roost.core.assign import stop_order
from roost.core.effects import Step
from roost.core.silence import watch_pool
from roost.core.state import Contact, State, is_over
from roost.model.frames import Drop
from roost.model.instance import Instance, Move
from roost.model.limits import STORY_MAX
from roost.model.node import Node
from roost.model.states import FINISHED, HOLDING, MOVES, NODE_MOVES
from roost.model.workload import Workload


def move(state: State, out: Step, instance: Instance, to: str, cause: str, at_ms: int) -> None:
    """Bring an instance into a state. Room is taken and given back here and nowhere else."""
    before = instance.state
    assert to in MOVES[before], f"{instance.key} cannot go from {before} to {to} ({cause}): {instance.story}"
    spec = state.spec_of(instance)
    counts = state.progress[instance.workload].counts
    counts[before] -= 1
    counts[to] = counts.get(to, 0) + 1
    if to in HOLDING and before not in HOLDING:
        state.occupy(spec, instance)
    elif before in HOLDING and to not in HOLDING:
        state.vacate(spec, instance)
        step_up(state, out, instance)
        instance.moving = False
        out.order(instance.node, Drop(instance.token))
        _settle_drain(state, out, instance.node, at_ms)
    if before == "running":
        instance.serving_ms, instance.sick = 0, ""
    if to == "running" or to in FINISHED:
        state.tell_dependants(instance.workload, instance.index)
    if instance.workload in state.restless and to != "placed":
        state.unsettled[instance.workload] = None
    cause = intern(cause)  # hundreds of thousands of stories are told in the same few sentences
    instance.state = to
    instance.since_ms = at_ms
    instance.cause = cause
    tell(instance, to, cause, at_ms, state.revision + 1)
    state.touch_instance(instance)
    if to in FINISHED:
        instance.finished_ms = at_ms
        finish_if_over(state, state.workloads[instance.workload], at_ms)


def stop(state: State, out: Step, instance: Instance, cause: str, now: int, *, moving: bool = False) -> None:
    """First phase of stopping: tell the agent. Room is kept until it confirms, or until its node is lost."""
    instance.moving = moving
    move(state, out, instance, "stopping", cause, now)
    out.order(instance.node, stop_order(state, instance))


def tell(thing: Instance | Node, to: str, cause: str, at_ms: int, revision: int) -> None:
    """Add a line to a story; the oldest lines go."""
    thing.story = (*thing.story[1 - STORY_MAX :], Move(at_ms, to, cause, revision))


def finish_if_over(state: State, workload: Workload, at_ms: int) -> None:
    """A workload of which nothing lives and nothing will start is finished, once."""
    if workload.finished_ms or not is_over(state, workload):
        return
    key = workload.key
    workload.finished_ms = max(at_ms, 1)
    state.finished[key] = None
    state.finished_instances += sum(state.progress_of(workload).counts.values())
    state.at(workload.finished_ms + workload.policy.keep_ms, "sweep", key)
    state.wait_for(workload, ())
    state.tell_dependants(key)
    if workload.parent:
        state.ended_runs[workload.parent] = None
    state.touch_workload(workload)


def reopen(state: State, workload: Workload) -> None:
    """A workload that was finished lives again."""
    if workload.finished_ms:
        workload.finished_ms = 0
        state.finished.pop(workload.key)
        state.finished_instances -= sum(state.progress_of(workload).counts.values())
        state.touch_workload(workload)


def settle_node(state: State, out: Step, node: Node, cause: str, at_ms: int, *, is_lost: bool = False) -> None:
    """The status of a node from what is known of it: out of touch, leaving service, or ready; lost is told by lose."""
    contact = state.contacts[node.name]
    if not contact.in_touch:
        to = "lost" if node.status == "lost" or is_lost else "suspect"
    elif node.draining:
        to = "draining" if state.held[node.name] else "drained"
    else:
        to = "cordoned" if node.cordoned else "ready"
    if to != node.status:
        assert to in NODE_MOVES[node.status], f"node {node.name} cannot go from {node.status} to {to}: {node.story}"
        node.status = to
        tell(node, to, cause, at_ms, state.revision + 1)
        state.touch_node(node)
        out.nodes.append((node.name, to, cause))
    state.open_node(node)
    watch_pool(state, node.facts.pool)


def _settle_drain(state: State, out: Step, name: str, at_ms: int) -> None:
    node = state.nodes[name]
    if node.status == "draining" and not state.held[name]:
        settle_node(state, out, node, "nothing runs here any more", at_ms)


def contact_of(state: State, name: str, session: int) -> Contact | None:
    """The contact of a node if this is still its session; words of an older session are not heard."""
    node = state.nodes.get(name)
    if node is None or node.session != session or node.status == "lost":
        return None
    return state.contacts[name]
