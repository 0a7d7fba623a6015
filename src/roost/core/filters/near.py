"""Near: instances of what is named must be in the same place already."""

import numpy as np

from roost.core.company import NOWHERE
from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask, Beside


def mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes in places where somebody of each subject is. Who is to be near its own kind may begin in any."""
    result: Mask | None = None
    for rule in _rules(ask):
        yes = _could_begin(fleet, rule) if _begins(fleet, rule, subjects) else fleet.here(rule.subject, rule.by) > 0
        result = yes if result is None else result & yes
    return result


def words(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    """Who is not there."""
    parts = []
    for rule in _rules(ask):
        if _begins(fleet, rule, subjects):
            if not bool(_could_begin(fleet, rule)[failing].all()):
                parts.append(f"it is not known in which {rule.by} it is")
        elif bool((fleet.here(rule.subject, rule.by)[failing] == 0).any()):
            where = "runs anywhere" if rule.subject not in fleet.crowd.members else f"is in this {rule.by}"
            parts.append(f"nobody of {rule.subject} {where}")
    return "near: " + "; ".join(parts)


def _rules(ask: Ask) -> list[Beside]:
    return (
        [] if ask.company is None else [each for each in ask.company.rules if each.kind == "near" and not each.weight]
    )


def _begins(fleet: Fleet, rule: Beside, subjects: tuple[str, ...]) -> bool:
    """Whether this is about its own kind, and nobody of it is there yet."""
    return rule.subject in subjects and rule.subject not in fleet.crowd.members


def _could_begin(fleet: Fleet, rule: Beside) -> Mask:
    """Others are to follow, so it must be known which place that is."""
    return np.asarray(fleet.places(rule.by) != NOWHERE)
