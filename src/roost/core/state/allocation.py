"""An allocation: all that one attempt takes on its node, so that exactly that is released."""

from typing import NamedTuple

from roost.model.records.instance import Instance
from roost.model.records.workload import Policy, Workload


class Allocation(NamedTuple):
    """What an attempt has on its node. `selectors` are the names by which rules of others match it."""

    resources: tuple[tuple[str, int], ...] = ()
    devices: tuple[int, ...] = ()
    device_milli: int = 0  # of each of them
    ports: tuple[int, ...] = ()
    selectors: tuple[str, ...] = ()
    anti_affinity: tuple[tuple[str, str], ...] = ()  # (selector, by): what must not come where this is


def allocation_of(workload: Workload, instance: Instance) -> Allocation:
    return make_allocation(workload.project, workload.key, workload.policy, instance.devices, instance.ports)


def make_allocation(
    project: str, key: str, policy: Policy, devices: tuple[int, ...], ports: tuple[int, ...]
) -> Allocation:
    ask, selectors = policy.ask, selectors_of(project, key, policy.labels)
    rules = ask.affinity.rules if ask.affinity is not None else ()
    apart = tuple([(rule.selector, rule.by) for rule in rules if rule.kind == "apart" and not rule.weight])
    return Allocation(ask.resources, devices, ask.gpu_milli, ports, selectors, apart)


def selectors_of(project: str, key: str, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The names by which rules of others can match a workload's instances."""
    return (key, *[f"{project}?{label}" for label in labels])
