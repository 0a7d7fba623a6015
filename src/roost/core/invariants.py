"""Invariants of a state after every step, each with messages for what breaks it; and the equality of two states."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator

from roost.core.dependencies.invariants import ORDER_RULES
from roost.core.state.allocation import Allocation, allocation_of
from roost.core.state.counts import COUNT_RULES
from roost.core.state.dependencies import link
from roost.core.state.queue import FOREVER, start_by_ms
from roost.core.state.state import State, is_over
from roost.core.watch import waiting_since_ms
from roost.model.records.instance import Instance
from roost.model.records.project import INSTANCES
from roost.model.records.workload import Workload
from roost.model.states import (
    ABSENT,
    ALLOCATED,
    FINISHED,
    InstanceState,
    NodeStatus,
    PoolStatus,
    WhenLost,
    WorkloadKind,
)

Complaints = Iterator[str]


def check(state: State) -> list[str]:
    """Every broken invariant; none in a healthy state."""
    return [f"{rule.__name__}: {message}" for rule in RULES for message in rule(state)]


def differences(left: State, right: State) -> list[str]:
    """Where two states differ in what is stored or derived from it. Liveness and timers do not count."""
    found = []
    for name, facet in FACETS.items():
        one, other = facet(left), facet(right)
        if one != other:
            found.append(f"{name}: {_first_difference(one, other)}")
    return found


def room_is_what_is_held(state: State) -> Complaints:
    """The used resources of a node are the allocations of its instances and orphans."""
    fleet = state.fleet
    if fleet.names != sorted(state.nodes):
        yield f"the fleet has {fleet.names}, the nodes are {sorted(state.nodes)}"
        return
    for row, name in enumerate(fleet.names):
        wanted: Counter[str] = Counter()
        for claim in _allocations(state, name):
            for resource, amount in claim.resources:
                wanted[resource] += amount
        for resource, used in fleet.used.items():
            total = fleet.total[resource].item(row)
            if used.item(row) != wanted[resource]:
                yield f"{name} counts {used[row]} {resource} as used, held are {wanted[resource]}"
            if total != _offered(state, name, resource):
                yield f"{name} has {total} {resource} in the fleet, its facts say otherwise"


def claims_are_counted(state: State) -> Complaints:
    """The devices, ports and selectors of a node are those of its allocations."""
    members: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for name in state.allocated:
        row = state.fleet.row(name)
        free = state.fleet.device_total[row].copy()
        ports: Counter[int] = Counter()
        for claim in _allocations(state, name):
            for device in claim.devices:
                free[device] -= claim.device_milli
            ports.update(claim.ports)
            for selector in claim.selectors:
                members[selector][name] += 1
        if free.tolist() != state.fleet.devices[row].tolist():
            yield f"{name} has devices {state.fleet.devices[row].tolist()} free, should have {free.tolist()}"
        if ports != state.fleet.ports.get(name, {}):
            yield f"{name} has ports {state.fleet.ports.get(name)} taken, should have {ports}"
    if members != state.fleet.topology.members:
        yield f"the crowd is {state.fleet.topology.members}, should be {members}"


def room_is_enough(state: State) -> Complaints:
    """No node has more allocated than it has, except one that came back with less."""
    for resource, used in state.fleet.used.items():
        for row, left in enumerate((state.fleet.total[resource] - used).tolist()):
            if left < 0:
                yield f"{state.fleet.names[row]} has {left} {resource} free"
    for row, devices in enumerate(state.fleet.devices.tolist()):
        if min(devices, default=0) < 0:
            yield f"{state.fleet.names[row]} has devices {devices} free"
    for name, ports in state.fleet.ports.items():
        if max(ports.values()) > 1:
            yield f"{name} has ports {ports} taken"


def holders_are_held(state: State) -> Complaints:
    """The index of a node has exactly its allocated instances."""
    expected: dict[str, dict[int, Instance]] = {name: {} for name in state.nodes}
    for instance in state.instances.values():
        if instance.state in ALLOCATED:
            if instance.node not in expected or instance.token in expected[instance.node]:
                yield f"{instance.key} is {instance.state} on {instance.node} with token {instance.token}"
                continue
            expected[instance.node][instance.token] = instance
    for name in sorted(expected.keys() | state.allocated.keys()):
        if state.allocated.get(name) != expected.get(name):
            yield f"{name} holds {sorted(state.allocated.get(name, ()))}, but should {sorted(expected.get(name, ()))}"


def instances_are_whole(state: State) -> Complaints:
    for key, instance in state.instances.items():
        if key != instance.key or instance.workload not in state.workloads:
            yield f"{key} belongs to nothing"
        if instance.state == InstanceState.LOST:
            yield f"{key} is lost without a decision about its next attempt"
        misplaced = instance.node if instance.state == InstanceState.QUEUED else not instance.node
        if misplaced and instance.state in ALLOCATED | {InstanceState.QUEUED}:
            yield f"{key} is {instance.state} on node {instance.node!r}"
        if (instance.state in FINISHED) != bool(instance.finished_ms):
            yield f"{key} is {instance.state} and finished at {instance.finished_ms}"
        if instance.token > state.serial or (instance.attempt > 0) != (instance.token > 0):
            yield f"{key} has token {instance.token} at attempt {instance.attempt}, the last serial is {state.serial}"


def progress_is_counted(state: State) -> Complaints:
    """Indexes below `placed_count` have records, and no others; the counts by state are right."""
    counts: defaultdict[str, Counter[InstanceState]] = defaultdict(Counter)
    beyond: Counter[str] = Counter()
    for instance in state.instances.values():
        counts[instance.workload][instance.state] += 1
        beyond[instance.workload] = max(beyond[instance.workload], instance.index + 1)
    for key, workload in state.workloads.items():
        begun, existing = _progress_of(state, workload)
        if existing != counts[key]:
            yield f"{key} counts {existing}, there are {dict(counts[key])}"
        has_extra = key in state.reconciling or workload.finished_ms  # retired soon, or kept with a finished workload
        most = max(workload.count, beyond[key]) if has_extra else workload.count
        if begun > most or beyond[key] > begun:
            yield f"{key} has begun {begun} of {workload.count}, the last record is {beyond[key] - 1}"
        if workload.policy.kind == WorkloadKind.JOB and not workload.adopted and sum(existing.values()) != begun:
            yield f"{key} has begun {begun} and has {sum(existing.values())} records"


def workloads_end_once(state: State) -> Complaints:
    """A workload is finished when all its instances are, or with its cancellation, and is in the list for retention."""
    instances = 0
    for key, workload in state.workloads.items():
        is_late = workload.cancelling is not None and not workload.finished_ms
        if is_over(state, workload) != bool(workload.finished_ms) and not is_late:
            yield f"{key} is over: {is_over(state, workload)}, finished at {workload.finished_ms}"
        if (key in state.finished) != bool(workload.finished_ms):
            yield f"{key} finished at {workload.finished_ms} and is remembered: {key in state.finished}"
        if workload.finished_ms and key in state.progress:
            instances += sum(state.progress[key].counts.values())
    if instances != state.finished_instances or len(state.finished) > len(state.workloads):
        yield f"{state.finished_instances} finished instances are counted, there are {instances}"


def pending_instances_are_queued(state: State) -> Complaints:
    """A pending instance is in its class, or has a timer after which it will be."""
    fresh = {id(workload) for line in state.queue.classes.values() for workload in line.unstarted}
    again = {(key, index) for line in state.queue.classes.values() for _, _, index, key, _ in line.requeued}
    timed = {(kind, key) for _, kind, key in state.timers}
    for workload in state.workloads.values():
        if state.has_unstarted(workload) and id(workload) not in fresh:
            yield f"{workload.key} waits in no line"
    for key, instance in state.instances.items():
        queued = instance.state == InstanceState.QUEUED and not instance.blocked_on_dependency
        queued = queued and instance.workload not in state.cancelling
        if queued and (instance.workload, instance.index) not in again and ("ready", key) not in timed:
            yield f"{key} waits in no line and for no moment"


def nothing_waits_forever(state: State) -> Complaints:
    """Leases, queue timeouts, drain deadlines and retention each have a timer in time."""
    first: dict[tuple[str, str], int] = {}
    for at_ms, kind, key in state.timers:
        first[kind, key] = min(at_ms, first.get((kind, key), at_ms))
    longest = state.now_ms + state.meta.lease_ms + state.settings.lease_margin_ms  # it may have been longer once
    for name, node in state.nodes.items():
        lease = max(state.liveness[name].lease_until_ms, longest)
        if node.status not in ABSENT and first.get(("lease", name), lease + 1) > lease:
            yield f"no timer for the lease of {name}"
        if node.draining and node.drain_until_ms > state.now_ms and ("drain", name) not in first:
            yield f"no timer for the drain deadline of {name}"
    for key, workload in state.workloads.items():
        if workload.finished_ms:
            if ("sweep", key) not in first:
                yield f"no timer for the retention of {key}"
        elif not workload.unstarted_end_state and not workload.policy.schedule:
            timeout = workload.policy.queue_timeout_ms if not workload.pending_conditions else 0
            limits = [waiting_since_ms(workload) + timeout if timeout else FOREVER, start_by_ms(workload)]
            if any(state.now_ms < limit < FOREVER for limit in limits) and ("queue", key) not in first:
                yield f"no timer for the queue timeout of {key}"


def nodes_are_as_they_seem(state: State) -> Complaints:
    """The status of a node is derived; only an open node takes work; a lost one has no allocations."""
    fleet = state.fleet
    for row, name in enumerate(fleet.names):
        node, contact = state.nodes[name], state.liveness[name]
        if contact.in_touch:
            expected = NodeStatus.CORDONED if node.cordoned else NodeStatus.READY
            if node.draining:
                expected = NodeStatus.DRAINING if state.allocated[name] else NodeStatus.DRAINED
        else:
            expected = node.status if node.status in ABSENT else NodeStatus.SUSPECT
            if node.status not in (NodeStatus.SUSPECT, *ABSENT) and node.session and contact.generation == 0:
                expected = node.status  # as stored: it has not registered with this server yet
        if node.status != expected:
            yield f"{name} is {node.status}, but should be {expected}"
        pool = state.pools.get(node.facts.pool)
        is_served = node.status == NodeStatus.READY and contact.in_touch
        is_served = is_served and (pool is None or pool.status == PoolStatus.READY)
        if bool(fleet.open[row]) != is_served:
            yield f"{name} is {node.status} and open: {fleet.open[row]}"
        if bool(fleet.online[row]) != contact.in_touch:
            yield f"{name} is in touch: {contact.in_touch}, online: {fleet.online[row]}"
        if not contact.connected and node.status in ABSENT:
            if contact.orphans:
                yield f"{name} is lost and haunted"
            for instance in state.allocated[name].values() if name not in state.losing else ():
                if state.spec_of(instance).policy.when_lost != WhenLost.PIN:
                    yield f"{name} is lost and still holds {instance.key}"
        for token in contact.orphans:
            if token in state.allocated[name]:
                yield f"{name} holds {token} twice"


def what_is_held_is_charged(state: State) -> Complaints:
    """Projects are charged for their allocations; priorities are counted; gangs have their workloads."""
    charged: defaultdict[str, Counter[str]] = defaultdict(Counter)
    priorities: Counter[int] = Counter()
    for allocated in state.allocated.values():
        for instance in allocated.values():
            if instance.prefilled_behind:
                continue
            workload = state.spec_of(instance)
            charged[workload.project][INSTANCES] += 1
            for resource, amount in workload.policy.ask.resources:
                charged[workload.project][resource] += amount
            priorities[workload.policy.priority] += 1
    found = {name: {name: n for name, n in own.items() if n} for name, own in state.project_usage.items()}
    if found != charged:
        yield f"projects are charged {found}, they hold {charged}"
    if priorities != state.priorities:
        yield f"priorities are counted {state.priorities}, they are {priorities}"
    gangs: dict[str, dict[str, None]] = {}
    for key, workload in state.workloads.items():
        if workload.policy.gang:
            link(gangs, workload.policy.gang, key)
    if state.gangs != gangs:
        yield f"gangs are {state.gangs}, they should be {gangs}"


def who_stands_behind_follows(state: State) -> Complaints:
    """A prefilled instance is on the node of its predecessor, with the same ask, until it is retracted."""
    found = {}
    for name, allocated in state.allocated.items():
        for token, instance in allocated.items():
            if not instance.prefilled_behind:
                continue
            found[instance.prefilled_behind] = token
            before = allocated.get(instance.prefilled_behind)
            if before is None or before.token >= token:
                yield f"{instance.key} stands behind {instance.prefilled_behind}, which is not on {name}"
            elif state.spec_of(before).policy.ask != state.spec_of(instance).policy.ask:
                yield f"{instance.key} stands behind {before.key}, which has other room"
            if name not in state.retract_timers:
                yield f"no timer to retract {instance.key}"
    if found != {token: follower.token for token, follower in state.prefilled.items()}:
        yield f"followers are {state.prefilled}, they should be {found}"
    for key, instance in state.instances.items():
        if instance.prefilled_behind and instance.state not in ALLOCATED:
            yield f"{key} is {instance.state} and stands behind {instance.prefilled_behind}"


def preemption_has_no_cycles(state: State) -> Complaints:
    """No instance has preempted its preemptor."""
    if state.preemption_cycles:
        yield f"{state.preemption_cycles} cycles of preemption"


def serials_only_grow(state: State) -> Complaints:
    if state.serial > state.meta.reserved:
        yield f"serial {state.serial} is beyond {state.meta.reserved}"


RULES: tuple[Callable[[State], Complaints], ...] = (
    room_is_what_is_held,
    claims_are_counted,
    room_is_enough,
    holders_are_held,
    instances_are_whole,
    progress_is_counted,
    workloads_end_once,
    pending_instances_are_queued,
    nothing_waits_forever,
    nodes_are_as_they_seem,
    what_is_held_is_charged,
    who_stands_behind_follows,
    preemption_has_no_cycles,
    serials_only_grow,
    *COUNT_RULES,
    *ORDER_RULES,
)


def _offered(state: State, name: str, resource: str) -> int:
    """What a node has, with the overcommit of its pool."""
    facts = state.nodes[name].facts
    pool = state.pools.get(facts.pool)
    return facts.resources.get(resource, 0) * (pool.overcommit.get(resource, 100) if pool else 100) // 100


def _allocations(state: State, name: str) -> Iterator[Allocation]:
    for instance in state.allocated[name].values():
        if not instance.prefilled_behind:
            yield allocation_of(state.spec_of(instance), instance)
    yield from state.liveness[name].orphans.values()


def _pending(state: State) -> list[tuple[int, int, str]]:
    """Pending instances from the classes and records, each once."""
    found: set[tuple[int, int, str]] = set()
    for line in state.queue.classes.values():
        found.update(
            (workload.serial, -1, workload.key) for workload in line.unstarted if state.has_unstarted(workload)
        )
        found.update(entry[1:4] for entry in line.requeued if state.is_requeued(entry))
    for instance in state.instances.values():
        if instance.state == InstanceState.QUEUED:  # after a load it has a timer that is due at once
            found.add((state.spec_of(instance).serial, instance.index, instance.workload))
    return sorted(found)


def _used(state: State) -> dict[tuple[str, str], int]:
    """The used resources without orphans: agents report those again."""
    used = {}
    for resource, column in state.fleet.used.items():
        for name, amount in zip(state.fleet.names, column.tolist(), strict=True):
            orphans = state.liveness[name].orphans.values()
            orphaned = sum(dict(allocation.resources).get(resource, 0) for allocation in orphans)
            if amount - orphaned:
                used[name, resource] = amount - orphaned
    return used


def _progress_of(state: State, workload: Workload) -> tuple[int, dict[InstanceState, int]]:
    progress = state.progress.get(workload.key)
    counts = {count: number for count, number in sorted(progress.counts.items()) if number} if progress else {}
    return state.placed_count(workload), counts


def _total(state: State) -> dict[tuple[str, str], int]:
    return {
        (name, resource): amount
        for resource, column in state.fleet.total.items()
        for name, amount in zip(state.fleet.names, column.tolist(), strict=True)
        if amount
    }


FACETS: dict[str, Callable[[State], object]] = {
    "workloads": lambda state: dict(sorted(state.workloads.items())),
    "instances": lambda state: dict(sorted(state.instances.items())),
    "nodes": lambda state: dict(sorted(state.nodes.items())),
    "meta": lambda state: state.meta,
    "progress": lambda state: {key: _progress_of(state, workload) for key, workload in state.workloads.items()},
    "allocated": lambda state: {name: sorted(allocated) for name, allocated in sorted(state.allocated.items())},
    "used": _used,
    "total": _total,
    "waiting": _pending,
    "dependents": lambda state: {key: sorted(dependant) for key, dependant in sorted(state.dependents.items())},
    "schedules": lambda state: sorted(state.schedules),
    "runs": lambda state: {key: sorted(run) for key, run in sorted(state.runs.items())},
    "versions": lambda state: dict(sorted(state.versions.items())),
    "file_sets": lambda state: {project: dict(sets) for project, sets in sorted(state.file_sets.items())},
    "needs": lambda state: dict(sorted(state.needs.items())),
    "usage": lambda state: {day: dict(sorted(projects.items())) for day, projects in sorted(state.usage.items())},
    "finished": lambda state: (sorted(state.finished), state.finished_instances),
}


def _first_difference(one: object, other: object) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if key not in one or key not in other or one[key] != other[key]:
                return f"{key}: {one.get(key)} / {other.get(key)}"
    return f"{one} / {other}"
