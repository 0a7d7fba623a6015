"""What must be true of a state after every step, and when two states are the same. Broken rules are told in words."""

from collections.abc import Callable, Iterator

from roost.core.dependencies.invariants import ORDER_RULES
from roost.core.state.allocation import allocation_of
from roost.core.state.queue import FOREVER, start_by_ms
from roost.core.state.state import State, is_over
from roost.core.watch import waiting_since_ms
from roost.model.records.instance import Instance
from roost.model.records.project import INSTANCES
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED, FINISHED, InstanceState, NodeStatus, PoolStatus, WhenLost, WorkloadKind

Complaints = Iterator[str]


def check(state: State) -> list[str]:
    """Every broken invariant; an empty list is what a healthy state gives."""
    return [f"{rule.__name__}: {message}" for rule in RULES for message in rule(state)]


def differences(left: State, right: State) -> list[str]:
    """Where two states differ in what is stored or derived from it. What only a living server knows is left out."""
    found = []
    for name, facet in FACETS.items():
        one, other = facet(left), facet(right)
        if one != other:
            found.append(f"{name}: {_first_difference(one, other)}")
    return found


def room_is_what_is_held(state: State) -> Complaints:
    """used == sum of held asks and ghosts, never more than there is."""
    fleet = state.fleet
    if fleet.names != sorted(state.nodes):
        yield f"the fleet has {fleet.names}, the nodes are {sorted(state.nodes)}"
        return
    wanted = {(name, row): 0 for name in fleet.used for row in range(len(fleet))}
    for row, name in enumerate(fleet.names):
        for ask in _asks(state, name):
            for resource, amount in ask:
                wanted[resource, row] = wanted.get((resource, row), 0) + amount
    for resource, used in fleet.used.items():
        total = fleet.total[resource].tolist()
        for row, amount in enumerate(used.tolist()):
            node = fleet.names[row]
            if amount != wanted[resource, row]:
                yield f"{node} counts {amount} {resource} as used, held are {wanted[resource, row]}"
            if total[row] != _offered(state, node, resource):
                yield f"{node} has {total[row]} {resource} in the fleet, its facts say otherwise"


def claims_are_counted(state: State) -> Complaints:
    """Devices, ports and company are what the holders claim."""
    members: dict[str, dict[str, int]] = {}
    for name, allocated in state.allocated.items():
        claims = [
            allocation_of(state.spec_of(instance), instance)
            for instance in allocated.values()
            if not instance.prefilled_behind
        ]
        claims += state.liveness[name].orphans.values()
        row = state.fleet.row(name)
        free = state.fleet.device_total[row].copy()
        ports: dict[int, int] = {}
        for claim in claims:
            for device in claim.devices:
                free[device] -= claim.device_milli
            for port in claim.ports:
                ports[port] = ports.get(port, 0) + 1
            for subject in claim.selectors:
                here = members.setdefault(subject, {})
                here[name] = here.get(name, 0) + 1
        if free.tolist() != state.fleet.devices[row].tolist():
            yield f"{name} has devices {state.fleet.devices[row].tolist()} free, should have {free.tolist()}"
        if ports != state.fleet.ports.get(name, {}):
            yield f"{name} has ports {state.fleet.ports.get(name)} taken, should have {ports}"
    if members != state.fleet.topology.members:
        yield f"the crowd is {state.fleet.topology.members}, should be {members}"


def room_is_enough(state: State) -> Complaints:
    """No node holds more than it has. (A node that told of less than it had before is an exception.)"""
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
    """Whatever takes room is in its node's index, and nothing else is."""
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
    """The fields of an instance fit its state."""
    for key, instance in state.instances.items():
        if key != instance.key or instance.workload not in state.workloads:
            yield f"{key} belongs to nothing"
        if instance.state == InstanceState.LOST:
            yield f"{key} is lost and nobody decided what follows"
        misplaced = instance.node if instance.state == InstanceState.QUEUED else not instance.node
        if misplaced and instance.state in ALLOCATED | {InstanceState.QUEUED}:
            yield f"{key} is {instance.state} on node {instance.node!r}"
        if (instance.state in FINISHED) != bool(instance.finished_ms):
            yield f"{key} is {instance.state} and finished at {instance.finished_ms}"
        if instance.token > state.serial or (instance.attempt > 0) != (instance.token > 0):
            yield f"{key} has token {instance.token} at attempt {instance.attempt}, the last serial is {state.serial}"


def progress_is_counted(state: State) -> Complaints:
    """Indexes below `begun` have records, no others; counts are what they count."""
    counts: dict[str, dict[InstanceState, int]] = {}
    beyond: dict[str, int] = {}
    for instance in state.instances.values():
        own = counts.setdefault(instance.workload, {})
        own[instance.state] = own.get(instance.state, 0) + 1
        beyond[instance.workload] = max(beyond.get(instance.workload, 0), instance.index + 1)
    for key, workload in state.workloads.items():
        progress = state.progress.get(key)
        existing = {count: number for count, number in progress.counts.items() if number} if progress else {}
        if existing != counts.get(key, {}):
            yield f"{key} counts {existing}, there are {counts.get(key, {})}"
        begun = state.placed_count(workload)
        has_extra = key in state.reconciling or workload.finished_ms  # retired soon, or kept with what is over
        most = max(workload.count, beyond.get(key, 0)) if has_extra else workload.count
        if begun > most or beyond.get(key, 0) > begun:
            yield f"{key} has begun {begun} of {workload.count}, the last record is {beyond.get(key, 0) - 1}"
        if workload.policy.kind == WorkloadKind.JOB and not workload.adopted and sum(existing.values()) != begun:
            yield f"{key} has begun {begun} and has {sum(existing.values())} records"


def workloads_end_once(state: State) -> Complaints:
    """Finished is what is over, and it is remembered to be swept."""
    instances = 0
    for key, workload in state.workloads.items():
        if is_over(state, workload) != bool(workload.finished_ms):
            yield f"{key} is over: {is_over(state, workload)}, finished at {workload.finished_ms}"
        if (key in state.finished) != bool(workload.finished_ms):
            yield f"{key} finished at {workload.finished_ms} and is remembered: {key in state.finished}"
        if workload.finished_ms and key in state.progress:
            instances += sum(state.progress[key].counts.values())
    if instances != state.finished_instances or len(state.finished) > len(state.workloads):
        yield f"{state.finished_instances} finished instances are counted, there are {instances}"


def who_waits_is_queued(state: State) -> Complaints:
    """Everybody who waits stands in its line, or has a timer for the moment it will."""
    fresh = {id(workload) for line in state.queue.classes.values() for workload in line.unstarted}
    again = {(key, index) for line in state.queue.classes.values() for _, _, index, key, _ in line.requeued}
    timed = {(kind, key) for _, kind, key in state.timers}
    for workload in state.workloads.values():
        if state.has_unstarted(workload) and id(workload) not in fresh:
            yield f"{workload.key} waits in no line"
    for key, instance in state.instances.items():
        queued = instance.state == InstanceState.QUEUED and not instance.blocked_on_dependency
        if queued and (instance.workload, instance.index) not in again and ("ready", key) not in timed:
            yield f"{key} waits in no line and for no moment"


def nothing_waits_for_ever(state: State) -> Complaints:
    """Leases, limits on waiting, drain deadlines and retention each have a timer that is not too late."""
    first: dict[tuple[str, str], int] = {}
    for at_ms, kind, key in state.timers:
        first[kind, key] = min(at_ms, first.get((kind, key), at_ms))
    longest = state.now_ms + state.meta.lease_ms + state.settings.lease_margin_ms  # it may have been longer once
    for name, node in state.nodes.items():
        lease = max(state.liveness[name].lease_until_ms, longest)
        if node.status != NodeStatus.LOST and first.get(("lease", name), lease + 1) > lease:
            yield f"nobody looks at the lease of {name}"
        if node.draining and node.drain_until_ms > state.now_ms and ("drain", name) not in first:
            yield f"nobody looks at the drain deadline of {name}"
    for key, workload in state.workloads.items():
        if workload.finished_ms:
            if ("sweep", key) not in first:
                yield f"nobody will sweep {key}"
        elif not workload.unstarted_end_state and not workload.policy.schedule:
            timeout = workload.policy.queue_timeout_ms if not workload.pending_conditions else 0
            limits = [waiting_since_ms(workload) + timeout if timeout else FOREVER, start_by_ms(workload)]
            if any(state.now_ms < limit < FOREVER for limit in limits) and ("queue", key) not in first:
                yield f"nobody looks how long {key} waits"


def nodes_are_as_they_seem(state: State) -> Complaints:
    """The status of a node follows from what is known of it; only an open one takes work; a lost one holds nothing."""
    fleet = state.fleet
    for row, name in enumerate(fleet.names):
        node, contact = state.nodes[name], state.liveness[name]
        if contact.in_touch:
            expected = NodeStatus.CORDONED if node.cordoned else NodeStatus.READY
            if node.draining:
                expected = NodeStatus.DRAINING if state.allocated[name] else NodeStatus.DRAINED
        else:
            expected = NodeStatus.LOST if node.status == NodeStatus.LOST else NodeStatus.SUSPECT
            if node.status not in (NodeStatus.SUSPECT, NodeStatus.LOST) and node.session and contact.generation == 0:
                expected = node.status  # as it was stored: it has not said hello to this server yet
        if node.status != expected:
            yield f"{name} is {node.status}, but should be {expected}"
        pool = state.pools.get(node.facts.pool)
        is_served = node.status == NodeStatus.READY and contact.in_touch
        is_served = is_served and (pool is None or pool.status == PoolStatus.READY)
        if bool(fleet.open[row]) != is_served:
            yield f"{name} is {node.status} and open: {fleet.open[row]}"
        if bool(fleet.online[row]) != contact.in_touch:
            yield f"{name} is in touch: {contact.in_touch}, online: {fleet.online[row]}"
        if not contact.connected and node.status == NodeStatus.LOST:
            if contact.orphans:
                yield f"{name} is lost and haunted"
            for instance in state.allocated[name].values():
                if state.spec_of(instance).policy.when_lost != WhenLost.PIN:
                    yield f"{name} is lost and still holds {instance.key}"
        for token in contact.orphans:
            if token in state.allocated[name]:
                yield f"{name} holds {token} twice"


def what_is_held_is_charged(state: State) -> Complaints:
    """Projects are charged for what their instances hold; priorities are counted; gangs know their workloads."""
    charged: dict[str, dict[str, int]] = {}
    priorities: dict[int, int] = {}
    for allocated in state.allocated.values():
        for instance in allocated.values():
            if instance.prefilled_behind:
                continue
            workload = state.spec_of(instance)
            own = charged.setdefault(workload.project, {INSTANCES: 0})
            own[INSTANCES] += 1
            for resource, amount in workload.policy.ask.resources:
                own[resource] = own.get(resource, 0) + amount
            priorities[workload.policy.priority] = priorities.get(workload.policy.priority, 0) + 1
    found = {name: {name: n for name, n in own.items() if n} for name, own in state.project_usage.items()}
    if found != charged:
        yield f"projects are charged {found}, they hold {charged}"
    if priorities != state.priorities:
        yield f"priorities are counted {state.priorities}, they are {priorities}"
    gangs: dict[str, set[str]] = {}
    for key, workload in state.workloads.items():
        if workload.policy.gang:
            gangs.setdefault(workload.policy.gang, set()).add(key)
    if {name: set(keys) for name, keys in state.gangs.items()} != gangs:
        yield f"gangs are {state.gangs}, they should be {gangs}"


def who_stands_behind_follows(state: State) -> Complaints:
    """Everybody who stands behind somebody does so on its node, alone, with the same ask, until it is called back."""
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
                yield f"nobody calls {instance.key} back"
    if found != {token: follower.token for token, follower in state.prefilled.items()}:
        yield f"followers are {state.prefilled}, they should be {found}"
    for key, instance in state.instances.items():
        if instance.prefilled_behind and instance.state not in ALLOCATED:
            yield f"{key} is {instance.state} and stands behind {instance.prefilled_behind}"


def preemption_has_no_cycles(state: State) -> Complaints:
    """Who was preempted has never preempted its preemptor."""
    if state.preemption_cycles:
        yield f"{state.preemption_cycles} cycles of preemption"


def serials_only_grow(state: State) -> Complaints:
    """What was promised to the store covers what was given out."""
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
    who_waits_is_queued,
    nothing_waits_for_ever,
    nodes_are_as_they_seem,
    what_is_held_is_charged,
    who_stands_behind_follows,
    preemption_has_no_cycles,
    serials_only_grow,
    *ORDER_RULES,
)


def _offered(state: State, name: str, resource: str) -> int:
    """What a node has, or its pool promises of it."""
    facts = state.nodes[name].facts
    pool = state.pools.get(facts.pool)
    return facts.resources.get(resource, 0) * (pool.overcommit.get(resource, 100) if pool else 100) // 100


def _asks(state: State, name: str) -> Iterator[tuple[tuple[str, int], ...]]:
    for instance in state.allocated[name].values():
        if not instance.prefilled_behind:
            yield state.spec_of(instance).policy.ask.resources
    for allocation in state.liveness[name].orphans.values():
        yield allocation.resources


def _waiting(state: State) -> list[tuple[int, int, str]]:
    """Who waits, as the lines tell it: those that have ended meanwhile do not count, and nobody counts twice."""
    found: set[tuple[int, int, str]] = set()
    for line in state.queue.classes.values():
        found.update(
            (workload.serial, -1, workload.key) for workload in line.unstarted if state.has_unstarted(workload)
        )
        found.update(entry[1:4] for entry in line.requeued if state.is_requeued(entry))
    for instance in state.instances.values():
        if instance.state == InstanceState.QUEUED:  # after a load it waits for a timer that is due at once
            found.add((state.spec_of(instance).serial, instance.index, instance.workload))
    return sorted(found)


def _used(state: State) -> dict[tuple[str, str], int]:
    """What is in use without ghosts: those are told anew by agents."""
    used = {}
    for resource, column in state.fleet.used.items():
        for name, amount in zip(state.fleet.names, column.tolist(), strict=True):
            haunted = sum(
                dict(allocation.resources).get(resource, 0) for allocation in state.liveness[name].orphans.values()
            )
            if amount - haunted:
                used[name, resource] = amount - haunted
    return used


def _progress(state: State) -> dict[str, tuple[int, dict[InstanceState, int]]]:
    found = {}
    for key, workload in state.workloads.items():
        progress = state.progress.get(key)
        counts = {count: number for count, number in sorted(progress.counts.items()) if number} if progress else {}
        found[key] = (state.placed_count(workload), counts)
    return found


def _total(state: State) -> dict[tuple[str, str], int]:
    return {
        (name, resource): amount
        for resource, column in state.fleet.total.items()
        for name, amount in zip(state.fleet.names, column.tolist(), strict=True)
        if amount
    }


def _keyed(workloads: dict[str, Workload]) -> dict[str, Workload]:
    return dict(sorted(workloads.items()))


FACETS: dict[str, Callable[[State], object]] = {
    "workloads": lambda state: _keyed(state.workloads),
    "instances": lambda state: dict(sorted(state.instances.items())),
    "nodes": lambda state: dict(sorted(state.nodes.items())),
    "meta": lambda state: state.meta,
    "progress": _progress,
    "allocated": lambda state: {name: sorted(allocated) for name, allocated in sorted(state.allocated.items())},
    "used": _used,
    "total": _total,
    "waiting": _waiting,
    "dependents": lambda state: {key: sorted(dependant) for key, dependant in sorted(state.dependents.items())},
    "schedules": lambda state: sorted(state.schedules),
    "runs": lambda state: {key: sorted(run) for key, run in sorted(state.runs.items())},
    "finished": lambda state: (sorted(state.finished), state.finished_instances),
}


def _first_difference(one: object, other: object) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if key not in one or key not in other or one[key] != other[key]:
                return f"{key}: {one.get(key)} / {other.get(key)}"
    return f"{one} / {other}"
