"""Spread: no place may have more than so many instances of the workload above the place that has the fewest."""

from roost.core.company import NOWHERE
from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask, Spread


def mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in places that may have one more. Only places count that have a node which could take it at all."""
    result: Mask | None = None
    for rule in _rules(ask):
        assert ask.company is not None
        yes = fleet.here(ask.company.subject, rule.by) + 1 - fewest(fleet, ask, rule, fits) <= rule.skew_max
        yes &= fleet.places(rule.by) != NOWHERE
        result = yes if result is None else result & yes
    return result


def words(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    """Which evenness would be broken."""
    parts = []
    for rule in _rules(ask):
        known = fleet.places(rule.by)[failing] != NOWHERE
        if known.any():
            parts.append(f"its {rule.by} has {rule.skew_max} more than another already")
        if not known.all():
            parts.append(f"it is not known in which {rule.by} it is")
    return "spread: " + "; ".join(parts)


def fewest(fleet: Fleet, ask: Ask, rule: Spread, fits: Mask) -> int:
    """How many are in the place that has the fewest. A place all of whose nodes are out of service does not count."""
    assert ask.company is not None
    places = fleet.places(rule.by)
    counts = fleet.here(ask.company.subject, rule.by)[fits & fleet.open & (places != NOWHERE)]
    return int(counts.min()) if len(counts) else 0


def _rules(ask: Ask) -> list[Spread]:
    return [] if ask.company is None else [rule for rule in ask.company.spread if not rule.weight]
