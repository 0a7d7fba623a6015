"""Even distribution of one workload: spread over domains, and a limit per node."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask, all_of
from roost.core.state.topology import NO_DOMAIN
from roost.model.records.workload import Ask, SpreadRule


def per_node_mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    if ask.affinity is None or not ask.affinity.per_node:
        return None
    return np.asarray(fleet.count_in_domain(ask.affinity.selector, "node") < ask.affinity.per_node)


def explain_per_node(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    assert ask.affinity is not None
    return f"per_node: has {ask.affinity.per_node} of it already"


def spread_mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in domains that may have one more. Only domains with a node that could take it count."""
    masks = []
    for rule in _spread_rules(ask):
        assert ask.affinity is not None
        above = fleet.count_in_domain(ask.affinity.selector, rule.by) + 1 - fewest(fleet, ask, rule, fits)
        masks += [above <= rule.skew_max, fleet.domains(rule.by) != NO_DOMAIN]
    return all_of(masks)


def explain_spread(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    parts = []
    for rule in _spread_rules(ask):
        existing = fleet.domains(rule.by)[failing] != NO_DOMAIN
        if existing.any():
            parts.append(f"its {rule.by} has {rule.skew_max} more than another already")
        if not existing.all():
            parts.append(f"it is not known in which {rule.by} it is")
    return "spread: " + "; ".join(parts)


def fewest(fleet: Fleet, ask: Ask, rule: SpreadRule, fits: Mask) -> int:
    """The fewest instances in a domain. A domain without open nodes does not count."""
    assert ask.affinity is not None
    places = fleet.domains(rule.by)
    counts = fleet.count_in_domain(ask.affinity.selector, rule.by)[fits & fleet.open & (places != NO_DOMAIN)]
    return int(counts.min()) if len(counts) else 0


def _spread_rules(ask: Ask) -> list[SpreadRule]:
    return [] if ask.affinity is None else [rule for rule in ask.affinity.spread if not rule.weight]
