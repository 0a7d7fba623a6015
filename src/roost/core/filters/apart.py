"""Apart: none of what is named may be in the same place, and nobody may come who is apart from whom is there."""

from roost.core.company import NOWHERE, PLACES
from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in places where nobody is of whom the ask is apart, and nobody who is apart from it."""
    result: Mask | None = None
    for subject, by, repelled in _rules(fleet, ask, subjects):
        yes = fleet.here(subject, by, repelled=repelled) == 0
        if not repelled and by != "node":
            yes &= fleet.places(by) != NOWHERE
        result = yes if result is None else result & yes
    return result


def words(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    """Who is there."""
    parts = []
    for subject, by, repelled in _rules(fleet, ask, subjects):
        if bool((fleet.here(subject, by, repelled=repelled)[failing] > 0).any()):
            parts.append(f"somebody apart from {subject} is in this {by}" if repelled else f"{subject} is in this {by}")
        elif not repelled and bool((fleet.places(by)[failing] == NOWHERE).any()):
            parts.append(f"it is not known in which {by} it is")
    return "apart: " + "; ".join(parts)


def _rules(fleet: Fleet, ask: Ask, subjects: tuple[str, ...]) -> list[tuple[str, str, bool]]:
    own = [] if ask.company is None else ask.company.rules
    found = [(rule.subject, rule.by, False) for rule in own if rule.kind == "apart" and not rule.weight]
    if fleet.crowd.repelled:
        others = [(each, by) for each in subjects for by in PLACES if (each, by) in fleet.crowd.repelled]
        found += [(each, by, True) for each, by in others if (each, by, False) not in found]  # it keeps away itself
    return found
