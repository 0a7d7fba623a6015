"""Flaky nodes: where runs of different work end badly soon after their start, one after the other, others are preferred
for a while.

Only ends that a node can be blamed for count: a run that could not be started or was killed by a signal, and one that
ended otherwise while the same work runs well, or then succeeds, on another node. An exit code alone is the program's.
They count since the last run that went well there, unless the work was killed on another node as well: something that
crashes everywhere says nothing about where. The verdict is stored; what led to it is not.
"""

from roost.core.state.liveness import NodeFailures
from roost.core.state.state import State
from roost.core.state.timers import TimerKind
from roost.core.transitions import note_node
from roost.model.keys import instance_key
from roost.model.reasons.attempts import InputsFailed, KilledBySignal, StartFailed
from roost.model.reasons.nodes import NodeFlaky, NodeFlakyEnded
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.states import InstanceState

SOON_MS = 10_000  # a run that ends badly within this has not really begun
WINDOW_MS = 5 * 60_000  # what is longer ago counts no more
WORKLOADS = 3  # so many different ones that fail in a row are no coincidence,
STARTS = 5  # nor are so many starts of fewer, if these run well elsewhere
ENDS_MAX = 32  # remembered per node: enough for the words; the oldest go
FIRST_MS = 10 * 60_000  # avoided for so long, doubling while it goes on
LONGEST_MS = 60 * 60_000
FAILING_MAX = 4_096  # workloads of which it is remembered where they fail, some 300 bytes each
INDEXES_MAX = 100  # instances of a workload that are looked at for one that runs well elsewhere


def record_end(state: State, instance: Instance, ending: InstanceState, reason: Reason, now: int) -> None:
    """An attempt ended by itself on its node, or could not be started there."""
    node = state.nodes.get(instance.node)
    if node is None:
        return
    if ending == InstanceState.SUCCEEDED:
        state.node_failures.pop(node.name, None)
        _blame_others(state, instance, now)
    is_soon = not instance.started_ms or now - instance.started_ms <= SOON_MS
    if not is_soon or ending != InstanceState.FAILED:
        return
    _remember(state, instance.workload, node, now)
    if isinstance(reason, InputsFailed) and reason.failure.is_final:
        return  # no node can do better
    if isinstance(reason, StartFailed | InputsFailed | KilledBySignal) or _runs_elsewhere(state, instance, now):
        _blame(state, node, instance, now)


def _blame_others(state: State, instance: Instance, now: int) -> None:
    """It succeeds here: nodes on which the same work has just failed may be the cause."""
    where = state.recent_failures.pop(instance.workload, {})
    for name, end_ms in where.items():
        node = state.nodes.get(name)
        if node is not None and name != instance.node and end_ms > now - WINDOW_MS:
            _blame(state, node, instance, now)


def _blame(state: State, node: Node, instance: Instance, now: int) -> None:
    trouble = state.node_failures.setdefault(node.name, NodeFailures())
    trouble.ends = [end for end in trouble.ends if end[0] > now - WINDOW_MS][1 - ENDS_MAX :]
    trouble.ends.append((now, instance.workload))
    if not node.flaky_until_ms:
        _judge(state, node, trouble, instance, now)


def check_flaky(state: State, out: object, name: str, now: int) -> None:
    node = state.nodes.get(name)
    if node is not None and node.flaky_until_ms and node.flaky_until_ms <= now:
        _clear(state, node, NodeFlakyEnded(), now)


def clear_flaky(state: State, node: Node) -> None:
    state.node_failures.pop(node.name, None)
    if node.flaky_until_ms:
        _clear(state, node, None, state.now_ms)


def _judge(state: State, node: Node, trouble: NodeFailures, instance: Instance, now: int) -> None:
    ends = [key for _, key in trouble.ends if not _fails_elsewhere(state, key, node, now)]
    different = len(set(ends))
    is_many = len(ends) >= STARTS and (different > 1 or _runs_elsewhere(state, instance, now))
    if (different < WORKLOADS and not is_many) or not _may_avoid(state):
        return
    for_ms = min(FIRST_MS << trouble.times, LONGEST_MS)
    trouble.times = min(trouble.times + 1, 10)
    node.flaky_until_ms = now + for_ms
    note_node(state, node, node.status, NodeFlaky(len(ends), different, WINDOW_MS, for_ms), now)
    state.touch_node(node)
    state.join_fleet(node.name, node.facts)
    state.at(node.flaky_until_ms, TimerKind.FLAKY, node.name)


def _clear(state: State, node: Node, reason: Reason | None, now: int) -> None:
    node.flaky_until_ms = 0
    if reason is not None:
        note_node(state, node, node.status, reason, now)
    state.touch_node(node)
    state.join_fleet(node.name, node.facts)


def _may_avoid(state: State) -> bool:
    """If most nodes are in trouble it is not the nodes: at most half of them are avoided, and never the only one."""
    flaky = sum(bool(node.flaky_until_ms) for node in state.nodes.values())
    return 2 * (flaky + 1) <= int(state.fleet.online.sum())


def _fails_elsewhere(state: State, workload: str, node: Node, now: int) -> bool:
    where = state.recent_failures.get(workload, {})
    return any(name != node.name and end_ms > now - WINDOW_MS for name, end_ms in where.items())


def _remember(state: State, workload: str, node: Node, now: int) -> None:
    """The last two nodes are enough to tell one from many."""
    where = state.recent_failures.pop(workload, {})
    where.pop(node.name, None)
    where[node.name] = now
    if len(where) > 2:
        del where[next(iter(where))]
    state.recent_failures[workload] = where
    if len(state.recent_failures) > FAILING_MAX:
        del state.recent_failures[next(iter(state.recent_failures))]


def _runs_elsewhere(state: State, instance: Instance, now: int) -> bool:
    for index in range(INDEXES_MAX):
        other = state.instances.get(instance_key(instance.workload, index))
        if other is None or other.node == instance.node:
            continue
        if other.state == InstanceState.SUCCEEDED or (
            other.state == InstanceState.RUNNING and now - other.started_ms > SOON_MS
        ):
            return True
    return False
