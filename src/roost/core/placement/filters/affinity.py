"""Affinity: near what is named, and apart from what is named or from what is apart from this."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.core.state.topology import DOMAIN_KINDS, NO_DOMAIN
from roost.model.records.workload import AffinityRule, Ask


def near_mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in places where somebody of each subject is. Who is to be near its own kind may begin in any."""
    result: Mask | None = None
    for rule in _near_rules(ask):
        begins = _begins(fleet, rule, subjects)
        yes = _could_begin(fleet, rule) if begins else fleet.count_in_domain(rule.selector, rule.by) > 0
        result = yes if result is None else result & yes
    return result


def explain_near(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    """Who is not there."""
    parts = []
    for rule in _near_rules(ask):
        if _begins(fleet, rule, subjects):
            if not bool(_could_begin(fleet, rule)[failing].all()):
                parts.append(f"it is not known in which {rule.by} it is")
        elif bool((fleet.count_in_domain(rule.selector, rule.by)[failing] == 0).any()):
            where = "runs anywhere" if rule.selector not in fleet.topology.members else f"is in this {rule.by}"
            parts.append(f"no instance of {rule.selector} {where}")
    return "near: " + "; ".join(parts)


def _near_rules(ask: Ask) -> list[AffinityRule]:
    rules = () if ask.affinity is None else ask.affinity.rules
    return [rule for rule in rules if rule.kind == "near" and not rule.weight]


def _begins(fleet: Fleet, rule: AffinityRule, subjects: tuple[str, ...]) -> bool:
    """Whether this is about its own kind, and nobody of it is there yet."""
    return rule.selector in subjects and rule.selector not in fleet.topology.members


def _could_begin(fleet: Fleet, rule: AffinityRule) -> Mask:
    """Others are to follow, so it must be known which place that is."""
    return np.asarray(fleet.domains(rule.by) != NO_DOMAIN)


def apart_mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in places where nobody is of whom the ask is apart, and nobody who is apart from it."""
    result: Mask | None = None
    for subject, by, repelled in _apart_rules(fleet, ask, subjects):
        yes = fleet.count_in_domain(subject, by, repelled=repelled) == 0
        if not repelled and by != "node":
            yes &= fleet.domains(by) != NO_DOMAIN
        result = yes if result is None else result & yes
    return result


def explain_apart(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    """Who is there."""
    parts = []
    for subject, by, repelled in _apart_rules(fleet, ask, subjects):
        if bool((fleet.count_in_domain(subject, by, repelled=repelled)[failing] > 0).any()):
            present = f"a workload apart from {subject}" if repelled else subject
            parts.append(f"{present} is in this {by}")
        elif not repelled and bool((fleet.domains(by)[failing] == NO_DOMAIN).any()):
            parts.append(f"it is not known in which {by} it is")
    return "apart: " + "; ".join(parts)


def _apart_rules(fleet: Fleet, ask: Ask, subjects: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    own = [] if ask.affinity is None else ask.affinity.rules
    found: list[tuple[str, str, bool]] = [
        (rule.selector, rule.by, False) for rule in own if rule.kind == "apart" and not rule.weight
    ]
    if fleet.topology.anti_affinity:
        pairs = [(subject, by) for subject in subjects for by in DOMAIN_KINDS]
        others = [pair for pair in pairs if pair in fleet.topology.anti_affinity]
        found += [(other, by, True) for other, by in others if (other, by, False) not in found]  # it keeps away itself
    return found
