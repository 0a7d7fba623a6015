"""Affinity: `near` a selector, `apart` from it, and apart from instances with such a rule."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask, all_of
from roost.core.state.topology import DOMAIN_KINDS, NO_DOMAIN
from roost.model.records.workload import AffinityRule, Ask


def near_mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in domains with an instance of each selector. The first of its own kind may start in any."""
    return all_of(
        _could_begin(fleet, rule)
        if _begins(fleet, rule, subjects)
        else fleet.count_in_domain(rule.selector, rule.by) > 0
        for rule in _near_rules(ask)
    )


def explain_near(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
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
    return rule.selector in subjects and rule.selector not in fleet.topology.members


def _could_begin(fleet: Fleet, rule: AffinityRule) -> Mask:
    """Others are to follow, so the domain must be known."""
    return np.asarray(fleet.domains(rule.by) != NO_DOMAIN)


def apart_mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in domains without instances that the ask is apart from, or that are apart from it."""
    masks = []
    for subject, by, repelled in _apart_rules(fleet, ask, subjects):
        masks.append(fleet.count_in_domain(subject, by, repelled=repelled) == 0)
        if not repelled and by != "node":
            masks.append(fleet.domains(by) != NO_DOMAIN)
    return all_of(masks)


def explain_apart(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
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
