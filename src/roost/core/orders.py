"""Orders for nodes: the deltas of a step, or the whole assignment when deltas do not follow."""

from collections.abc import Iterator

import msgspec

from roost.core.passed_results import NOT_IN_NAMES, ResultsPassed, name_for_dependents, results_passed
from roost.core.state.outcome import Orders, Paced, Step
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.model.keys import host_and_port
from roost.model.protocol import Order, PowerOrder, Run, Stop
from roost.model.records.files import RunInput, input_folder
from roost.model.records.instance import Instance, PowerState
from roost.model.records.workload import Workload
from roost.model.states import InstanceState, Power, WhenLost, WorkloadKind

ORDERS_PER_UNIT = 5  # 2 us each
ADDRESSES_MAX = 100  # of one service: a client needs a few, and a variable has to fit into an environment
VARIABLES_MAX = 64  # of one run, for all services it depends on


def hand_out(state: State, out: Step) -> Paced[None]:
    """Turn the orders of a step into one message per connected node. Others get all when they register again."""
    for name in sorted(out.orders.keys() | out.whole):
        node, contact = state.nodes.get(name), state.liveness.get(name)
        if node is None or contact is None or not contact.connected:
            continue
        whole = name in out.whole
        orders = whole_assignment(state, name) if whole else tuple(out.orders[name])
        base = contact.generation
        contact.generation += 1
        out.assignments.append(Orders(name, node.session, base, contact.generation, whole, orders))
        yield 1 + len(orders) // ORDERS_PER_UNIT


def whole_assignment(state: State, name: str) -> tuple[Order, ...]:
    """All that a node has to run or stop; it drops everything else."""
    orders: list[Order] = []
    for _, instance in sorted(state.allocated[name].items()):
        orders.append(run_order(state, instance))
        if instance.state == InstanceState.STOPPING:
            orders.append(stop_order(state, instance))
        elif instance.power is not None and instance.power.is_pending:
            orders.append(power_order(instance.token, instance.power))
    return tuple(orders)


def run_order(state: State, instance: Instance) -> Run:
    """The order to run an attempt, with all an agent needs to run it and to report it for adoption."""
    workload = state.spec_of(instance)
    policy = workload.policy
    return Run(
        token=instance.token,
        workload=instance.workload,
        index=instance.index,
        attempt=instance.attempt,
        document=workload.document,
        timeout_ms=policy.timeout_ms,
        grace_ms=policy.grace_ms,
        leased=policy.fenced and policy.when_lost != WhenLost.PIN,
        submitted_ms=workload.submitted_ms,
        serial=workload.serial,
        version=instance.version,
        devices=instance.devices,
        ports=instance.ports,
        env=_variables(state, workload, instance.index),
        after=instance.prefilled_behind,
        inputs=tuple(_inputs(workload, instance)) if policy.inputs else (),
        power=Power.STOPPED if instance.power is not None and instance.power.begins_stopped else "",
    )


def _inputs(workload: Workload, instance: Instance) -> Iterator[RunInput]:
    """The inputs of a run: those of its workload, and the outputs that it got when it was released."""
    for item in workload.policy.inputs:
        if item.files is not None:
            yield RunInput(item.to, item.files.digest)
        elif item.url:
            yield RunInput(item.to, url=item.url, sha256=item.sha256)
        for given in (*workload.input_files, *instance.input_files) if item.workload else ():
            if given.workload == item.workload:
                yield RunInput(input_folder(item, given.index), given.files.digest, item.path, optional=item.optional)


def _variables(state: State, workload: Workload, index: int) -> tuple[tuple[str, str], ...]:
    """The addresses and results of what it depends on, and the values of its own element of an array."""
    if not workload.values and not workload.policy.after:
        return ()
    own = workload.values[index] if index < len(workload.values) else ()
    return _address_variables(state, workload) + passed_to(state, workload, index).variables + own


def passed_to(state: State, workload: Workload, index: int) -> ResultsPassed:
    """The results of its dependencies that a run gets. A variable with an address stays what it is."""
    if not workload.policy.after or not state.result_bytes_all:
        return ResultsPassed()
    return results_passed(state, workload, index, [name for name, _ in _address_variables(state, workload)])


def power_order(token: int, power: PowerState) -> PowerOrder:
    assert power.action is not None, f"attempt {token} was commanded to do nothing"
    return PowerOrder(token, power.serial, power.action, power.grace_ms)


def stop_order(state: State, instance: Instance) -> Stop:
    code = instance.reason.code if instance.reason is not None else ""
    return Stop(instance.token, state.spec_of(instance).policy.grace_ms, code)


class ServiceAddress(msgspec.Struct, frozen=True):
    index: int
    node: str
    host: str
    ports: dict[str, int]
    ready: bool


def addresses_of(state: State, workload: Workload) -> list[ServiceAddress]:
    """The addresses of the running instances of a workload, by index; at most ADDRESSES_MAX."""
    found: list[ServiceAddress] = []
    for instance in instances_of(state, workload):
        if instance.state != InstanceState.RUNNING or instance.node not in state.nodes:
            continue
        names = state.spec_of(instance).policy.ports
        ports = dict(zip(names, instance.ports, strict=False))
        host = state.nodes[instance.node].facts.address or instance.node
        found.append(ServiceAddress(instance.index, instance.node, host, ports, instance.ready_since_ms > 0))
        if len(found) == ADDRESSES_MAX:
            break
    return found


def _address_variables(state: State, workload: Workload) -> tuple[tuple[str, str], ...]:
    """Variables of the services a run depends on: ROOST_DB_SQL is `host:port,host:port` of the ready replicas."""
    found: dict[str, str] = {}
    for condition in workload.policy.after:
        other = state.workloads.get(condition.workload)
        if other is None or other.policy.kind == WorkloadKind.JOB or not other.policy.ports:
            continue
        ready = [address for address in addresses_of(state, other) if address.ready]
        for port in other.policy.ports:
            answer = [host_and_port(address.host, address.ports[port]) for address in ready if port in address.ports]
            name = NOT_IN_NAMES.sub("_", f"ROOST_{name_for_dependents(other)}_{port}".upper())
            found.setdefault(name, ",".join(answer))
    return tuple(found.items())[:VARIABLES_MAX]
