"""A claim: all that one attempt takes on its node, so that what is taken is given back exactly."""

from typing import NamedTuple

from roost.model.instance import Instance
from roost.model.workload import Ask, Policy, Workload


class Claim(NamedTuple):
    """Room on a node. `subjects` are the names by which others speak of who holds it."""

    resources: tuple[tuple[str, int], ...] = ()
    devices: tuple[int, ...] = ()
    device_milli: int = 0  # of each of them
    ports: tuple[int, ...] = ()
    subjects: tuple[str, ...] = ()
    apart: tuple[tuple[str, str], ...] = ()  # (subject, by): who must not come where this is


def claim_of(workload: Workload, instance: Instance) -> Claim:
    """What an instance takes, or would take, on its node."""
    return claim(workload.project, workload.key, workload.policy, instance.devices, instance.ports)


def claim(project: str, key: str, policy: Policy, devices: tuple[int, ...], ports: tuple[int, ...]) -> Claim:
    """The same from its parts."""
    ask = policy.ask
    return Claim(
        ask.resources, devices, ask.gpu_milli, ports, subjects_of(project, key, policy.labels), _apart(ask)
    )  # fmt: skip


def subjects_of(project: str, key: str, labels: tuple[str, ...]) -> tuple[str, ...]:
    """The names by which rules of others can speak of a workload's instances."""
    if not labels:
        return (key,)
    return (key, *[f"{project}?{label}" for label in labels])


def _apart(ask: Ask) -> tuple[tuple[str, str], ...]:
    if ask.company is None:
        return ()
    return tuple([(rule.subject, rule.by) for rule in ask.company.rules if rule.kind == "apart" and not rule.weight])
