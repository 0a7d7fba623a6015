"""A node that could not hold the ask even when empty will never do."""

import numpy as np

from roost.core.filters.resources import amount_words
from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes whose totals are large enough."""
    result = np.ones(len(fleet), np.bool_)
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        if total is None:
            result[:] = False
        else:
            result &= total >= amount
    return result


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """By how much the largest of them is too small."""
    parts = []
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        most = int(total[failing].max()) if total is not None else 0
        if total is None or bool((total[failing] < amount).any()):
            parts.append(f"needs {amount_words(resource, amount)}, the largest has {amount_words(resource, most)}")
    return "capacity: " + "; ".join(parts)
