"""A claim: all that one attempt takes on its node, so that what is taken is given back exactly."""

from typing import NamedTuple

from roost.model.records.instance import Instance
from roost.model.records.workload import Ask, Policy, Workload


class Allocation(NamedTuple):
    """Room on a node. `subjects` are the names by which others speak of who holds it."""

    resources: tuple[tuple[str, int], ...] = ()
    devices: tuple[int, ...] = ()
    device_milli: int = 0  # of each of them
    ports: tuple[int, ...] = ()
    selectors: tuple[str, ...] = ()
    anti_affinity: tuple[tuple[str, str], ...] = ()  # (subject, by): who must not come where this is


def allocation_of(workload: Workload, instance: Instance) -> Allocation:
    """What an instance takes, or would take, on its node."""
    return make_allocation(workload.project, workload.key, workload.policy, instance.devices, instance.ports)


def make_allocation(
    project: str, key: str, policy: Policy, devices: tuple[int, ...], ports: tuple[int, ...]
) -> Allocation:
    """The same from its parts."""
    ask = policy.ask
    return Allocation(
        ask.resources, devices, ask.gpu_milli, ports, selectors_of(project, key, policy.labels), _apart(ask)
    )  # fmt: skip


def selectors_of(project: str, key: str, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The names by which rules of others can speak of a workload's instances."""
    if not labels:
        return (key,)
    return (key, *[f"{project}?{label}" for label in labels])


def _apart(ask: Ask) -> tuple[tuple[str, str], ...]:
    if ask.affinity is None:
        return ()
    return tuple([(rule.selector, rule.by) for rule in ask.affinity.rules if rule.kind == "apart" and not rule.weight])
