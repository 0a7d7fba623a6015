"""What each node is to do: the deltas of a step, or the whole assignment when deltas do not follow."""

from roost.core.addresses import address_variables
from roost.core.effects import Orders, Step
from roost.core.state import State
from roost.model.frames import Order, Run, Stop
from roost.model.instance import Instance
from roost.model.workload import Workload


def hand_out(state: State, out: Step) -> None:
    """Turn the orders of a step into one message per connected node. Others get everything when they come back."""
    for name in sorted(out.orders.keys() | out.whole):
        node, contact = state.nodes.get(name), state.contacts.get(name)
        if node is None or contact is None or not contact.connected:
            continue
        whole = name in out.whole
        orders = whole_assignment(state, name) if whole else tuple(out.orders[name])
        base = contact.generation
        contact.generation += 1
        out.assignments.append(Orders(name, node.session, base, contact.generation, whole, orders))


def whole_assignment(state: State, name: str) -> tuple[Order, ...]:
    """Everything a node shall run or stop; what it has beyond that it drops."""
    orders: list[Order] = []
    for token in sorted(state.held[name]):
        instance = state.held[name][token]
        orders.append(run_order(state, instance))
        if instance.state == "stopping":
            orders.append(stop_order(state, instance))
    return tuple(orders)


def run_order(state: State, instance: Instance) -> Run:
    """The order to run an attempt, with all an agent must know to run it and to tell a forgetful server of it."""
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
        leased=policy.exclusive and policy.when_lost != "keep",
        submitted_ms=workload.submitted_ms,
        serial=workload.serial,
        version=instance.version,
        devices=instance.devices,
        ports=instance.ports,
        env=_variables(state, workload, instance.index),
        after=instance.behind,
    )


def _variables(state: State, workload: Workload, index: int) -> tuple[tuple[str, str], ...]:
    """What only this element is told, and where the services are that it waited for."""
    if not workload.values and not workload.policy.after:
        return ()
    own = workload.values[index] if index < len(workload.values) else ()
    return address_variables(state, workload) + own  # what its user wrote comes last, and counts


def stop_order(state: State, instance: Instance) -> Stop:
    """The order to stop an attempt."""
    return Stop(instance.token, state.spec_of(instance).policy.grace_ms, instance.cause)
