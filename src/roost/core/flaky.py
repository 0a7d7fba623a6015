"""Flaky nodes: where runs of different work end badly soon after their start, one after the other, others are preferred
for a while.

What counts against a node are bad starts since the last run that went well there, of work that did not fail on another
node as well: something that crashes everywhere says nothing about where. The verdict is stored; what led to it is not.
"""

from roost.core.move import tell
from roost.core.state import State
from roost.core.trouble import Trouble
from roost.model.instance import Instance
from roost.model.node import Node
from roost.model.units import show_duration

SOON_MS = 10_000  # a run that ends badly within this has not really begun
WINDOW_MS = 5 * 60_000  # what is longer ago counts no more
WORKLOADS = 3  # so many different ones that fail in a row are no coincidence,
STARTS = 5  # nor are so many starts of fewer, if these run well elsewhere
ENDS_MAX = 32  # remembered per node: enough for the words; the oldest go
FIRST_MS = 10 * 60_000  # avoided for so long, doubling while it goes on
LONGEST_MS = 60 * 60_000
FAILING_MAX = 4_096  # workloads of which it is remembered where they fail, some 300 bytes each
INDEXES_MAX = 100  # instances of a workload that are looked at for one that runs well elsewhere


def noticed(state: State, instance: Instance, ending: str, now: int) -> None:
    """An attempt has ended by itself on its node, or could not be started there."""
    node = state.nodes.get(instance.node)
    if node is None:
        return
    is_soon = not instance.started_ms or now - instance.started_ms <= SOON_MS
    if ending == "succeeded":
        state.troubles.pop(node.name, None)
        return
    if not is_soon or ending != "failed":
        return
    trouble = state.troubles.setdefault(node.name, Trouble())
    trouble.ends = [each for each in trouble.ends if each[0] > now - WINDOW_MS][1 - ENDS_MAX :]
    trouble.ends.append((now, instance.workload))
    _remember(state, instance.workload, node, now)
    if not node.flaky_until_ms:
        _judge(state, node, trouble, instance, now)


def look_at_flaky(state: State, out: object, name: str, now: int) -> None:
    """It was avoided long enough: it gets another chance."""
    node = state.nodes.get(name)
    if node is not None and node.flaky_until_ms and node.flaky_until_ms <= now:
        _clear(state, node, "is used like the others again", now)


def calm(state: State, node: Node) -> None:
    """An operator says that a node is well."""
    state.troubles.pop(node.name, None)
    if node.flaky_until_ms:
        _clear(state, node, "", state.now_ms)


def _judge(state: State, node: Node, trouble: Trouble, instance: Instance, now: int) -> None:
    ends = [key for _, key in trouble.ends if not _fails_elsewhere(state, key, node, now)]
    different = len(set(ends))
    is_many = len(ends) >= STARTS and (different > 1 or _runs_elsewhere(state, instance, now))
    if (different < WORKLOADS and not is_many) or not _may_avoid(state):
        return
    for_ms = min(FIRST_MS << trouble.times, LONGEST_MS)
    trouble.times = min(trouble.times + 1, 10)
    node.flaky_until_ms = now + for_ms
    what = f"{different} workloads" if different > 1 else "a workload that runs elsewhere"
    words = f"{len(ends)} runs of {what} failed here within {show_duration(WINDOW_MS)}; others are preferred for "
    tell(node, node.status, words + show_duration(for_ms), now, state.revision + 1)
    state.touch_node(node)
    state.join_fleet(node.name, node.facts)
    state.at(node.flaky_until_ms, "flaky", node.name)


def _clear(state: State, node: Node, words: str, now: int) -> None:
    node.flaky_until_ms = 0
    if words:
        tell(node, node.status, words, now, state.revision + 1)
    state.touch_node(node)
    state.join_fleet(node.name, node.facts)


def _may_avoid(state: State) -> bool:
    """If most nodes are in trouble it is not the nodes: at most half of them are avoided, and never the only one."""
    flaky = sum(bool(node.flaky_until_ms) for node in state.nodes.values())
    return 2 * (flaky + 1) <= int(state.fleet.online.sum())


def _fails_elsewhere(state: State, workload: str, node: Node, now: int) -> bool:
    where = state.failing.get(workload, {})
    return any(name != node.name and end_ms > now - WINDOW_MS for name, end_ms in where.items())


def _remember(state: State, workload: str, node: Node, now: int) -> None:
    """Note where a workload fails: the last two nodes are enough to tell one from many."""
    where = state.failing.pop(workload, {})
    where.pop(node.name, None)
    where[node.name] = now
    if len(where) > 2:
        del where[next(iter(where))]
    state.failing[workload] = where
    if len(state.failing) > FAILING_MAX:
        del state.failing[next(iter(state.failing))]


def _runs_elsewhere(state: State, instance: Instance, now: int) -> bool:
    """Whether others of its workload run well, or went well, on other nodes."""
    for index in range(INDEXES_MAX):
        other = state.instances.get(f"{instance.workload}.{index}")
        if other is None or other.node == instance.node:
            continue
        if other.state == "succeeded" or (other.state == "running" and now - other.started_ms > SOON_MS):
            return True
    return False
