"""The state: records, and the indexes derived from them, in parts that each copy themselves."""

from collections import OrderedDict
from copy import copy
from heapq import heappop
from typing import Any

import msgspec

from roost.core.state.allocation import allocation_of
from roost.core.state.dependencies import Dependencies
from roost.core.state.fleet import Fleet
from roost.core.state.liveness import Liveness
from roost.core.state.queue import FOREVER, EquivalenceClass, PendingHead, PendingWork, rank_of
from roost.core.state.records import Settings, StoredRecords
from roost.core.state.shared import Shared
from roost.core.state.timers import TimerKind, Timers
from roost.model.records.instance import Instance
from roost.model.records.node import FLAKY, Facts, Node
from roost.model.records.project import INSTANCES, facts_in_pool
from roost.model.records.workload import Ask, Workload
from roost.model.states import FINISHED, NodeStatus, PoolStatus, RestartWhen, WorkloadKind

GONE_AFTER_MS = 86_400_000  # a lost node that holds nothing is forgotten after a day


class Allocations:
    """What is in use: by node, project and priority."""

    def __init__(self) -> None:
        self.fleet = Fleet()
        self.score_caches: OrderedDict[tuple[Ask, str], Any] = OrderedDict()  # of `placement`
        self.allocated: dict[str, dict[int, Instance]] = {}  # node -> token -> instance
        self.prefilled: dict[int, Instance] = {}  # token -> the attempt that is prefilled behind it
        self.project_usage: dict[str, dict[str, int]] = {}  # project -> what its instances hold
        self.priorities: dict[int, int] = {}  # priority -> how many allocated instances have it

    def copy_allocations(self, origin: "Allocations", instances: dict[str, Instance]) -> None:
        """Begin as another; `instances` are the copies. Scores are computed again."""
        Allocations.__init__(self)
        self.fleet = copy(origin.fleet)

        def twins(held: dict[int, Instance]) -> dict[int, Instance]:
            return Shared(held, lambda instance: instances[instance.key])

        self.allocated = Shared(origin.allocated, twins)
        self.prefilled = twins(origin.prefilled)
        self.project_usage = {project: dict(usage) for project, usage in origin.project_usage.items()}
        self.priorities = dict(origin.priorities)


class State(StoredRecords, Allocations, PendingWork, Liveness, Timers, Dependencies):
    """Everything the core knows."""

    def __init__(self, settings: Settings | None = None) -> None:
        StoredRecords.__init__(self, settings)
        for part in (Allocations, PendingWork, Liveness, Timers, Dependencies):
            part.__init__(self)

    def head_of(self, line: EquivalenceClass) -> PendingHead | None:
        """The most urgent of a line that is still pending; what has ended meanwhile is dropped on the way."""
        index = -1
        while line.unstarted and (index := self.first_unstarted(line.unstarted[0])) < 0:
            line.unstarted.popleft()
        while line.requeued and not self.is_requeued(line.requeued[0]):
            heappop(line.requeued)
        fresh = line.unstarted[0] if line.unstarted else None
        rank = rank_of(fresh) if fresh is not None else (FOREVER, FOREVER)
        if line.requeued and (fresh is None or line.requeued[0][:2] <= rank):
            start_by, serial, index, key, _ = line.requeued[0]
            return PendingHead((start_by, serial), self.spec_of(self.instances[f"{key}.{index}"]), index, True)
        if fresh is None:
            return None
        return PendingHead(rank, fresh, index, False)

    def allocate(self, workload: Workload, instance: Instance) -> None:
        """An instance takes room on its node; one that stands behind another takes none yet."""
        self.allocated[instance.node][instance.token] = instance
        if instance.prefilled_behind:
            return
        self.fleet.take(instance.node, allocation_of(workload, instance))
        self.charge(workload.project, workload.policy.ask, 1)
        priority = workload.policy.priority
        self.priorities[priority] = self.priorities.get(priority, 0) + 1

    def release(self, workload: Workload, instance: Instance) -> None:
        """It gives the room back."""
        del self.allocated[instance.node][instance.token]
        if instance.prefilled_behind:
            return
        self.fleet.take(instance.node, allocation_of(workload, instance), -1)
        self.charge(workload.project, workload.policy.ask, -1)
        priority = workload.policy.priority
        self.priorities[priority] -= 1
        if not self.priorities[priority]:
            del self.priorities[priority]

    def charge(self, project: str, ask: Ask, sign: int) -> None:
        """An instance of a project has an allocation now, or has released it."""
        usage = self.project_usage.setdefault(project, {INSTANCES: 0})
        for resource, amount in ask.resources:
            usage[resource] = usage.get(resource, 0) + sign * amount
        usage[INSTANCES] += sign
        if not usage[INSTANCES]:
            del self.project_usage[project]

    def lowest_priority(self) -> int:
        """The least that matters of all that holds room; above all if nothing does."""
        return min(self.priorities, default=101)

    def join_fleet(self, name: str, facts: Facts) -> None:
        """Let a node tell what it offers; its pool may promise more than there is, and says what it does not say."""
        pool, node = self.pools.get(facts.pool), self.nodes.get(name)
        facts = facts_in_pool(facts, pool) if pool else facts
        if node is not None and node.flaky_until_ms:
            facts = msgspec.structs.replace(facts, taints=(*facts.taints, FLAKY))
        self.fleet.join(name, facts, pool.overcommit if pool else {})

    def open_node(self, node: Node) -> None:
        """Let a node take new work or not: by its own status, and by that of its pool."""
        pool, in_touch = self.pools.get(node.facts.pool), self.liveness[node.name].in_touch
        status = NodeStatus.DRAINING if node.status == NodeStatus.DRAINED else node.status
        closed = "" if status == NodeStatus.READY else str(status)
        if not closed and pool is not None and pool.status != PoolStatus.READY:
            message = "has failed" if pool.status == PoolStatus.FAILED else "is draining"
            closed = f"in pool {pool.name}, which {message}" + (f": {pool.reason}" if pool.reason else "")
        is_open = in_touch and not closed
        self.fleet.set_open(node.name, is_open=is_open, is_online=in_touch, closed=closed if in_touch else "")

    def apply_pool(self, name: str) -> None:
        """A pool has changed: so have its nodes, and who may go there."""
        pool = self.pools.get(name)
        fallback = pool.fallback if pool is not None and pool.status == PoolStatus.FAILED else ""
        self.fleet.set_pool(name, fallback, pool.projects if pool is not None else ())
        for node in self.nodes.values():
            if node.facts.pool == name:
                self.join_fleet(node.name, node.facts)
                self.open_node(node)

    def check_queue_at(self, when_ms: int) -> None:
        """Look at the queue again at a time, whatever happens until then."""
        if when_ms > self.now_ms and (not self.queue_check_ms or when_ms < self.queue_check_ms):
            self.queue_check_ms = when_ms
            self.at(when_ms, TimerKind.CHECK_QUEUE, "")

    def watch_lease(self, name: str) -> None:
        """Look at a node again when its lease ends; one timer per node is enough, it is set again when it fires. After
        a grace leases are shorter again, so no timer is further away than a lease."""
        if name not in self.lease_timers:
            self.lease_timers.add(name)
            longest = self.now_ms + self.meta.lease_ms + self.settings.lease_margin_ms
            self.at(min(self.liveness[name].lease_until_ms, longest), TimerKind.LEASE, name)


def overlay(state: State) -> State:
    """A copy on which the core can be asked what it would do. It is good until the state changes: records are shared
    until they are read."""
    new = State.__new__(State)
    new.copy_records(state)
    new.copy_allocations(state, new.instances)

    def twin(workload: Workload) -> Workload:
        """A workload that has ended or was replaced may still be in a queue."""
        return new.workloads[workload.key] if state.workloads.get(workload.key) is workload else copy(workload)

    new.copy_pending(state, twin)
    new.copy_liveness(state)
    new.copy_timers(state)
    new.copy_dependencies(state)
    return new


def is_over(state: State, workload: Workload) -> bool:
    """Whether nothing of a workload lives or will ever start again."""
    progress = state.progress.get(workload.key)
    if not workload.unstarted_end_state and (
        not _can_end(workload) or progress is None or progress.placed_count < workload.count
    ):
        return False
    return progress is None or all(state in FINISHED or not number for state, number in progress.counts.items())


def _can_end(workload: Workload) -> bool:
    restart = workload.policy.restart
    return workload.policy.kind == WorkloadKind.JOB or (restart is not None and restart.when != RestartWhen.ALWAYS)


def in_maintenance(state: State) -> bool:
    """Whether there is maintenance: nothing is placed, moved, updated or given up."""
    return bool(state.meta.maintenance)
