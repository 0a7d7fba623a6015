"""The state: records, and the indexes derived from them, in parts."""

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
from roost.core.state.shared import Shared, copy_part
from roost.core.state.timers import TimerKind, Timers
from roost.model.records.instance import Instance
from roost.model.records.node import FLAKY, Facts, Node
from roost.model.records.project import INSTANCES, Project, facts_in_pool
from roost.model.records.workload import Ask, Workload
from roost.model.states import FINISHED, IsolationLevel, NodeStatus, PoolStatus, RestartWhen, WorkloadKind

LEASE_NODES, LEASE_NODES_STEP, LEASE_MS_PER_NODE = 500, 100, 2
GONE_AFTER_MS = 86_400_000  # a lost node that holds nothing is forgotten after a day


class Allocations:
    def __init__(self) -> None:
        self.fleet = Fleet()
        self.score_caches: OrderedDict[tuple[Ask, str], Any] = OrderedDict()  # of `placement`
        self.allocated: dict[str, dict[int, Instance]] = {}  # node -> token -> instance
        self.prefilled: dict[int, Instance] = {}  # token -> the attempt that is prefilled behind it
        self.project_usage: dict[str, dict[str, int]] = {}  # project -> what its instances hold
        self.priorities: dict[int, int] = {}  # priority -> how many allocated instances have it

    def copy_allocations(self, origin: "Allocations", instances: dict[str, Instance]) -> None:
        """Copy another; `instances` are the copies. Scores are computed again."""
        Allocations.__init__(self)
        self.fleet = copy(origin.fleet)

        def twins(held: dict[int, Instance]) -> dict[int, Instance]:
            return Shared(held, lambda instance: instances[instance.key])

        self.allocated = Shared(origin.allocated, twins)
        self.prefilled = twins(origin.prefilled)
        self.project_usage = {project: dict(usage) for project, usage in origin.project_usage.items()}
        self.priorities = dict(origin.priorities)


class State(StoredRecords, Allocations, PendingWork, Liveness, Timers, Dependencies):
    def __init__(self, settings: Settings | None = None) -> None:
        StoredRecords.__init__(self, settings)
        for part in (Allocations, PendingWork, Liveness, Timers, Dependencies):
            part.__init__(self)

    def head_of(self, line: EquivalenceClass) -> PendingHead | None:
        """The most urgent instance of a class that is still pending; those that have ended are dropped on the way."""
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
        return PendingHead(rank, fresh, index, False) if fresh is not None else None

    def allocate(self, workload: Workload, instance: Instance) -> None:
        """Count the allocation of an instance; a prefilled one has none yet."""
        self.allocated[instance.node][instance.token] = instance
        if instance.prefilled_behind:
            return
        self.fleet.take(instance.node, allocation_of(workload, instance))
        self.charge(workload.project, workload.policy.ask, 1)
        priority = workload.policy.priority
        self.priorities[priority] = self.priorities.get(priority, 0) + 1

    def release(self, workload: Workload, instance: Instance) -> None:
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
        usage = self.project_usage.get(project)
        if usage is None:
            usage = self.project_usage[project] = {INSTANCES: 0}
        for resource, amount in ask.resources:
            usage[resource] = usage.get(resource, 0) + sign * amount
        usage[INSTANCES] += sign
        if not usage[INSTANCES]:
            del self.project_usage[project]

    def join_fleet(self, name: str, facts: Facts) -> None:
        """Add what a node offers to the fleet, with the overcommit, labels and taints of its pool."""
        pool, node = self.pools.get(facts.pool), self.nodes.get(name)
        facts = facts_in_pool(facts, pool) if pool else facts
        if node is not None and node.flaky_until_ms:
            facts = msgspec.structs.replace(facts, taints=(*facts.taints, FLAKY))
        self.fleet.join(name, facts, pool.overcommit if pool else {})

    def open_node(self, node: Node) -> None:
        """Whether a node takes new work follows from its own status and from that of its pool."""
        pool, in_touch = self.pools.get(node.facts.pool), self.liveness[node.name].in_touch
        status = NodeStatus.DRAINING if node.status == NodeStatus.DRAINED else node.status
        closed = "" if status == NodeStatus.READY else str(status)
        if not closed and pool is not None and pool.status != PoolStatus.READY:
            message = "has failed" if pool.status == PoolStatus.FAILED else "is draining"
            closed = f"in pool {pool.name}, which {message}" + (f": {pool.reason}" if pool.reason else "")
        is_open = in_touch and not closed
        self.fleet.set_open(node.name, is_open=is_open, is_online=in_touch, closed=closed if in_touch else "")

    def apply_pool(self, name: str) -> None:
        pool = self.pools.get(name)
        fallback = pool.fallback if pool is not None and pool.status == PoolStatus.FAILED else ""
        self.fleet.set_pool(name, fallback, pool.projects if pool is not None else ())
        for node in self.nodes.values():
            if node.facts.pool == name:
                self.join_fleet(node.name, node.facts)
                self.open_node(node)

    def apply_project(self, name: str) -> None:
        project = self.projects.get(name, Project(name))
        least = "" if project.isolation == IsolationLevel.NONE else str(project.isolation)
        self.fleet.of_processes[name] = least, project.run_as
        if not least and not project.run_as:
            del self.fleet.of_processes[name]

    def check_queue_at(self, when_ms: int) -> None:
        if when_ms > self.now_ms and (not self.queue_check_ms or when_ms < self.queue_check_ms):
            self.queue_check_ms = when_ms
            self.at(when_ms, TimerKind.CHECK_QUEUE, "")

    def wanted_lease_ms(self) -> int:
        """The lease for a fleet of this size: an agent beats four times per lease, 0.2 ms of the server's CPU each.

        With 500 nodes and 4 s that is a tenth of a core; 2 ms more for each further node keep it below a third. A
        store without memory does not know what leases the server before it has granted, so they stay as they are set.
        """
        more = -(-max(0, len(self.nodes) - LEASE_NODES) // LEASE_NODES_STEP) * LEASE_NODES_STEP
        return self.settings.lease_ms + (0 if self.settings.adopts else more * LEASE_MS_PER_NODE)

    def grow_lease(self) -> None:
        """At the end of a step. Agents are sent it from the next step on: then it is durable."""
        self.lease_ms = max(self.lease_ms, self.wanted_lease_ms())
        if self.lease_ms > self.meta.lease_ms:
            self.meta.lease_ms = self.lease_ms
            self.touch_meta()

    def watch_lease(self, name: str) -> None:
        """Set the lease timer of a node, one at a time: it is set again when it fires. After a grace, leases are
        shorter again, so no timer is further away than a lease."""
        if name not in self.lease_timers:
            self.lease_timers.add(name)
            longest = self.now_ms + self.meta.lease_ms + self.settings.lease_margin_ms
            self.at(min(self.liveness[name].lease_until_ms, longest), TimerKind.LEASE, name)


def overlay(state: State) -> State:
    """A copy for trials, valid until the state changes: records are shared until they are read."""
    new = State.__new__(State)
    new.copy_records(state)
    new.copy_allocations(state, new.instances)

    def twin(workload: Workload) -> Workload:
        """A workload that has ended or was replaced may still be in a queue."""
        return new.workloads[workload.key] if state.workloads.get(workload.key) is workload else copy(workload)

    new.copy_pending(state, twin)
    new.copy_liveness(state)
    copy_part(new, state, Timers)
    copy_part(new, state, Dependencies)
    return new


def is_over(state: State, workload: Workload) -> bool:
    """Whether all instances of a workload have finished and none will start again."""
    progress, restart = state.progress.get(workload.key), workload.policy.restart
    if not workload.unstarted_end_state:
        can_end = workload.policy.kind != WorkloadKind.SERVICE or (restart and restart.when != RestartWhen.ALWAYS)
        if not can_end or progress is None or progress.placed_count < workload.count:
            return False
    return progress is None or all(state in FINISHED or not number for state, number in progress.counts.items())


def awaits_agents(state: State) -> bool:
    """A server without memory knows the names and the rooms in use once the agents have registered, or their leases
    have ended. Until then it places nothing: a name that is submitted to it may run already."""
    return state.settings.awaits_agents and state.now_ms < state.adoption_deadline_ms()


def in_maintenance(state: State) -> bool:
    """During maintenance nothing is placed, moved, updated or lost."""
    return bool(state.meta.maintenance)
