"""Rules about what is in use now: unlike other rules, their answer changes with every placement."""

import numpy as np

from roost.core.filters.require import broken_by
from roost.core.fleet import Fleet, Mask
from roost.model.rules import heard_by
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes for which every such rule says yes now."""
    if not ask.require_now:
        return np.ones(len(fleet), np.bool_)
    return np.array([allows(fleet, ask, row) for row in range(len(fleet))], np.bool_)


def allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    """Whether they do for one node."""
    return not ask.require_now or not _broken(fleet, ask, row)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """The rules that say no, as they were written."""
    broken: dict[str, None] = {}
    for row in np.flatnonzero(failing):
        broken.update(dict.fromkeys(_broken(fleet, ask, int(row))))
    return "require: " + "; ".join(broken) + " does not hold now"


def _broken(fleet: Fleet, ask: Ask, row: int) -> list[str]:
    name, facts = fleet.names[row], fleet.facts[row]
    used = {resource: fleet.used[resource].item(row) for resource in facts.resources}
    free = {resource: fleet.total[resource].item(row) - taken for resource, taken in used.items()}
    found = [broken_by(rule, heard_by(rule, name, facts, (used, free))) for rule in ask.require_now]
    return [rule for rule in found if rule]
