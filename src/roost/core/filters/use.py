"""Rules about what is in use now: unlike other rules, their answer changes with every placement."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.rules import holds, words_of
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
    used = {resource: column.item(row) for resource, column in fleet.used.items()}
    node = words_of(fleet.names[row], fleet.facts[row], used)
    broken = []
    for rule in ask.require_now:
        yes, trouble = holds(rule, node)
        if not yes:
            broken.append(f"{rule} ({trouble})" if trouble else rule)
    return broken
