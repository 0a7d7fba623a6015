"""Counts over the whole state, kept by its changes: a commit costs what it changed, and a reader costs nothing."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from roost.core.state.state import State
from roost.model.states import InstanceState, NodeStatus, WorkloadState
from roost.ports.store import Change
from roost.server.views.work import counts_of, progress_of, workload_state, workloads_of
from roost.server.waiting import Slices

UNCOUNTED_MAX = 1_000  # changed workloads that wait for a reader: some 4 ms to count
COUNTED_AT_ONCE = 200  # beyond that, with each commit: less than a millisecond


class ObjectCounts(NamedTuple):
    nodes: Mapping[NodeStatus, int]
    workloads: Mapping[WorkloadState, int]
    instances: Mapping[InstanceState, int]
    waiting: int  # pending instances
    projects: Mapping[str, int]  # pending instances by project, of those that have workloads


class _Counted(NamedTuple):
    """What a workload adds to the counts. Equal ones are shared."""

    project: str
    state: WorkloadState
    instances: tuple[tuple[InstanceState, int], ...]


class Census:
    """A changed workload is counted again when a reader asks, or when many have changed."""

    def __init__(self) -> None:
        self._begin(None)

    def take(self, state: State, changes: Sequence[Change]) -> None:
        """A commit is durable."""
        if state is not self._state:
            self._begin(state)
            return
        uncounted = self._uncounted
        uncounted.update(workloads_of(changes))
        if len(uncounted) > UNCOUNTED_MAX:
            for _ in range(COUNTED_AT_ONCE):
                self._count(state, uncounted.popitem()[0])

    async def of(self, state: State) -> ObjectCounts:
        """Current counts. Those of a state that was just loaded are counted in slices."""
        if state is not self._state:
            self._begin(state)
        slices = Slices()
        while self._uncounted and state is self._state:
            self._count(state, self._uncounted.popitem()[0])
            await slices.pause()
        nodes = Counter(node.status for node in state.nodes.values())
        waiting = self._instances[InstanceState.QUEUED]
        return ObjectCounts(nodes, +self._workloads, +self._instances, waiting, self._projects)

    def _begin(self, state: State | None) -> None:
        self._state = state
        self._uncounted: dict[str, None] = dict.fromkeys(state.workloads if state is not None else ())
        self._counted: dict[str, _Counted] = {}
        self._shared: dict[_Counted, _Counted] = {}
        self._workloads: Counter[WorkloadState] = Counter()
        self._instances: Counter[InstanceState] = Counter()
        self._projects: dict[str, int] = {}
        self._workloads_of: Counter[str] = Counter()  # by project

    def _count(self, state: State, key: str) -> None:
        before = self._counted.pop(key, None)
        if before is not None:
            self._add(before, -1)
        workload = state.workloads.get(key)
        if workload is None:
            return
        every = counts_of(workload, *progress_of(state, key))
        found = _Counted(workload.project, workload_state(workload, every), tuple(every.items()))
        if len(self._shared) > len(self._counted):
            self._shared.clear()  # most are no longer used
        self._counted[key] = found = self._shared.setdefault(found, found)
        self._add(found, 1)

    def _add(self, counted: _Counted, sign: int) -> None:
        project = counted.project
        self._workloads[counted.state] += sign
        self._workloads_of[project] += sign
        self._projects.setdefault(project, 0)
        for state, number in counted.instances:
            self._instances[state] += sign * number
            if state == InstanceState.QUEUED:
                self._projects[project] += sign * number
        if not self._workloads_of[project]:
            del self._workloads_of[project], self._projects[project]
