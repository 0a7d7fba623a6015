"""Near: instances of what is named must be in the same place already."""

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask, Beside


def mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in places where somebody of each subject is. Who is to be near its own kind may begin anywhere."""
    result: Mask | None = None
    for rule in _rules(fleet, ask, subjects):
        yes = fleet.here(rule.subject, rule.by) > 0
        result = yes if result is None else result & yes
    return result


def words(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    """Who is not there."""
    parts = []
    for rule in _rules(fleet, ask, subjects):
        if bool((fleet.here(rule.subject, rule.by)[failing] == 0).any()):
            where = "runs anywhere" if rule.subject not in fleet.crowd.members else f"is in this {rule.by}"
            parts.append(f"nobody of {rule.subject} {where}")
    return "near: " + "; ".join(parts)


def _rules(fleet: Fleet, ask: Ask, subjects: tuple[str, ...]) -> list[Beside]:
    if ask.company is None:
        return []
    members = fleet.crowd.members
    return [
        rule
        for rule in ask.company.rules
        if rule.kind == "near" and not rule.weight and (rule.subject in members or rule.subject not in subjects)
    ]
