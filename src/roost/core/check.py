"""What must be true of a state after every step, and when two states are the same. Broken rules are told in words."""

from collections.abc import Callable, Iterator

from roost.core.check_order import ORDER_RULES
from roost.core.claim import claim_of
from roost.core.order import FOREVER, start_by_ms
from roost.core.state import State, is_over, waiting_since_ms
from roost.model.instance import Instance
from roost.model.project import INSTANCES
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import Workload

Complaints = Iterator[str]


def check(state: State) -> list[str]:
    """Every broken invariant; an empty list is what a healthy state gives."""
    return [f"{rule.__name__}: {words}" for rule in RULES for words in rule(state)]


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
    for name, held in state.held.items():
        claims = [claim_of(state.spec_of(each), each) for each in held.values() if not each.behind]
        claims += state.contacts[name].ghosts.values()
        row = state.fleet.row(name)
        free = state.fleet.device_total[row].copy()
        ports: dict[int, int] = {}
        for claim in claims:
            for device in claim.devices:
                free[device] -= claim.device_milli
            for port in claim.ports:
                ports[port] = ports.get(port, 0) + 1
            for subject in claim.subjects:
                here = members.setdefault(subject, {})
                here[name] = here.get(name, 0) + 1
        if free.tolist() != state.fleet.devices[row].tolist():
            yield f"{name} has devices {state.fleet.devices[row].tolist()} free, should have {free.tolist()}"
        if ports != state.fleet.ports.get(name, {}):
            yield f"{name} has ports {state.fleet.ports.get(name)} taken, should have {ports}"
    if members != state.fleet.crowd.members:
        yield f"the crowd is {state.fleet.crowd.members}, should be {members}"


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
        if instance.state in HOLDING:
            if instance.node not in expected or instance.token in expected[instance.node]:
                yield f"{instance.key} is {instance.state} on {instance.node} with token {instance.token}"
                continue
            expected[instance.node][instance.token] = instance
    for name in sorted(expected.keys() | state.held.keys()):
        if state.held.get(name) != expected.get(name):
            yield f"{name} holds {sorted(state.held.get(name, ()))}, but should {sorted(expected.get(name, ()))}"


def instances_are_whole(state: State) -> Complaints:
    """The fields of an instance fit its state."""
    for key, instance in state.instances.items():
        if key != instance.key or instance.workload not in state.workloads:
            yield f"{key} belongs to nothing"
        if instance.state == "lost":
            yield f"{key} is lost and nobody decided what follows"
        if (instance.state in HOLDING) > bool(instance.node) or (instance.state == "queued" and instance.node):
            yield f"{key} is {instance.state} on node {instance.node!r}"
        if (instance.state in FINISHED) != bool(instance.finished_ms):
            yield f"{key} is {instance.state} and finished at {instance.finished_ms}"
        if instance.token > state.serial or (instance.attempt > 0) != (instance.token > 0):
            yield f"{key} has token {instance.token} at attempt {instance.attempt}, the last serial is {state.serial}"


def progress_is_counted(state: State) -> Complaints:
    """Indexes below `begun` have records, no others; counts are what they count."""
    counts: dict[str, dict[str, int]] = {}
    beyond: dict[str, int] = {}
    for instance in state.instances.values():
        own = counts.setdefault(instance.workload, {})
        own[instance.state] = own.get(instance.state, 0) + 1
        beyond[instance.workload] = max(beyond.get(instance.workload, 0), instance.index + 1)
    for key, workload in state.workloads.items():
        progress = state.progress.get(key)
        known = {each: number for each, number in progress.counts.items() if number} if progress else {}
        if known != counts.get(key, {}):
            yield f"{key} counts {known}, there are {counts.get(key, {})}"
        begun = state.begun(workload)
        has_extra = key in state.restless or workload.finished_ms  # retired soon, or kept with what is over
        most = max(workload.count, beyond.get(key, 0)) if has_extra else workload.count
        if begun > most or beyond.get(key, 0) > begun:
            yield f"{key} has begun {begun} of {workload.count}, the last record is {beyond.get(key, 0) - 1}"
        if workload.policy.kind == "job" and not workload.adopted and sum(known.values()) != begun:
            yield f"{key} has begun {begun} and has {sum(known.values())} records"


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
    fresh = {id(workload) for line in state.queue.lines.values() for workload in line.fresh}
    again = {(key, index) for line in state.queue.lines.values() for _, _, index, key, _ in line.again}
    timed = {(kind, key) for _, kind, key in state.timers}
    for workload in state.workloads.values():
        if state.has_fresh(workload) and id(workload) not in fresh:
            yield f"{workload.key} waits in no line"
    for key, instance in state.instances.items():
        if instance.state == "queued" and not instance.waits and (instance.workload, instance.index) not in again:
            if ("ready", key) not in timed:
                yield f"{key} waits in no line and for no moment"


def nothing_waits_for_ever(state: State) -> Complaints:
    """Leases, limits on waiting, drain deadlines and retention each have a timer that is not too late."""
    first: dict[tuple[str, str], int] = {}
    for at_ms, kind, key in state.timers:
        first[kind, key] = min(at_ms, first.get((kind, key), at_ms))
    longest = state.now_ms + state.meta.lease_ms + state.settings.lease_margin_ms  # it may have been longer once
    for name, node in state.nodes.items():
        lease = max(state.contacts[name].lease_until_ms, longest)
        if node.status != "lost" and first.get(("lease", name), lease + 1) > lease:
            yield f"nobody looks at the lease of {name}"
        if node.draining and node.drain_until_ms > state.now_ms and ("drain", name) not in first:
            yield f"nobody looks at the drain deadline of {name}"
    for key, workload in state.workloads.items():
        if workload.finished_ms:
            if ("sweep", key) not in first:
                yield f"nobody will sweep {key}"
        elif not workload.rest and not workload.policy.schedule:
            timeout = workload.policy.queue_timeout_ms if not workload.waits else 0
            limits = [waiting_since_ms(workload) + timeout if timeout else FOREVER, start_by_ms(workload)]
            if any(state.now_ms < limit < FOREVER for limit in limits) and ("queue", key) not in first:
                yield f"nobody looks how long {key} waits"


def nodes_are_as_they_seem(state: State) -> Complaints:
    """The status of a node follows from what is known of it; only an open one takes work; a lost one holds nothing."""
    fleet = state.fleet
    for row, name in enumerate(fleet.names):
        node, contact = state.nodes[name], state.contacts[name]
        if contact.in_touch:
            expected = ("draining" if state.held[name] else "drained") if node.draining else "ready"
            expected = "cordoned" if node.cordoned and not node.draining else expected
        else:
            expected = "lost" if node.status == "lost" else "suspect"
            if node.status in ("draining", "drained", "cordoned", "ready") and node.session and contact.generation == 0:
                expected = node.status  # as it was stored: it has not said hello to this server yet
        if node.status != expected:
            yield f"{name} is {node.status}, but should be {expected}"
        pool = state.pools.get(node.facts.pool)
        is_served = node.status == "ready" and contact.in_touch and (pool is None or pool.status == "ready")
        if bool(fleet.open[row]) != is_served:
            yield f"{name} is {node.status} and open: {fleet.open[row]}"
        if bool(fleet.online[row]) != contact.in_touch:
            yield f"{name} is in touch: {contact.in_touch}, online: {fleet.online[row]}"
        if not contact.connected and node.status == "lost":
            if contact.ghosts:
                yield f"{name} is lost and haunted"
            for instance in state.held[name].values():
                if state.spec_of(instance).policy.when_lost != "keep":
                    yield f"{name} is lost and still holds {instance.key}"
        for token in contact.ghosts:
            if token in state.held[name]:
                yield f"{name} holds {token} twice"


def what_is_held_is_charged(state: State) -> Complaints:
    """Projects are charged for what their instances hold; priorities are counted; gangs know their workloads."""
    charged: dict[str, dict[str, int]] = {}
    priorities: dict[int, int] = {}
    for held in state.held.values():
        for instance in held.values():
            if instance.behind:
                continue
            workload = state.spec_of(instance)
            own = charged.setdefault(workload.project, {INSTANCES: 0})
            own[INSTANCES] += 1
            for resource, amount in workload.policy.ask.resources:
                own[resource] = own.get(resource, 0) + amount
            priorities[workload.policy.priority] = priorities.get(workload.policy.priority, 0) + 1
    found = {name: {each: n for each, n in own.items() if n} for name, own in state.charged.items()}
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
    for name, held in state.held.items():
        for token, instance in held.items():
            if not instance.behind:
                continue
            found[instance.behind] = token
            before = held.get(instance.behind)
            if before is None or before.token >= token:
                yield f"{instance.key} stands behind {instance.behind}, which is not on {name}"
            elif state.spec_of(before).policy.ask != state.spec_of(instance).policy.ask:
                yield f"{instance.key} stands behind {before.key}, which has other room"
            if name not in state.recalls:
                yield f"nobody calls {instance.key} back"
    if found != {token: each.token for token, each in state.followers.items()}:
        yield f"followers are {state.followers}, they should be {found}"
    for key, instance in state.instances.items():
        if instance.behind and instance.state not in HOLDING:
            yield f"{key} is {instance.state} and stands behind {instance.behind}"


def preemption_has_no_cycles(state: State) -> Complaints:
    """Who was preempted has never preempted its preemptor."""
    if state.cycles:
        yield f"{state.cycles} cycles of preemption"


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
    for instance in state.held[name].values():
        if not instance.behind:
            yield state.spec_of(instance).policy.ask.resources
    for held in state.contacts[name].ghosts.values():
        yield held.resources


def _waiting(state: State) -> list[tuple[int, int, str]]:
    """Who waits, as the lines tell it: those that have ended meanwhile do not count, and nobody counts twice."""
    found: set[tuple[int, int, str]] = set()
    for line in state.queue.lines.values():
        found.update((each.serial, -1, each.key) for each in line.fresh if state.has_fresh(each))
        found.update(entry[1:4] for entry in line.again if state.waits_again(entry))
    for instance in state.instances.values():
        if instance.state == "queued":  # after a load it waits for a timer that is due at once
            found.add((state.spec_of(instance).serial, instance.index, instance.workload))
    return sorted(found)


def _used(state: State) -> dict[tuple[str, str], int]:
    """What is in use without ghosts: those are told anew by agents."""
    used = {}
    for resource, column in state.fleet.used.items():
        for name, amount in zip(state.fleet.names, column.tolist(), strict=True):
            haunted = sum(dict(held.resources).get(resource, 0) for held in state.contacts[name].ghosts.values())
            if amount - haunted:
                used[name, resource] = amount - haunted
    return used


def _progress(state: State) -> dict[str, tuple[int, dict[str, int]]]:
    found = {}
    for key, workload in state.workloads.items():
        progress = state.progress.get(key)
        counts = {each: number for each, number in sorted(progress.counts.items()) if number} if progress else {}
        found[key] = (state.begun(workload), counts)
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
    "held": lambda state: {name: sorted(held) for name, held in sorted(state.held.items())},
    "used": _used,
    "total": _total,
    "waiting": _waiting,
    "dependants": lambda state: {key: sorted(each) for key, each in sorted(state.dependants.items())},
    "schedules": lambda state: sorted(state.schedules),
    "runs": lambda state: {key: sorted(each) for key, each in sorted(state.runs.items())},
    "finished": lambda state: (sorted(state.finished), state.finished_instances),
}


def _first_difference(one: object, other: object) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *other]:
            if key not in one or key not in other or one[key] != other[key]:
                return f"{key}: {one.get(key)} / {other.get(key)}"
    return f"{one} / {other}"
