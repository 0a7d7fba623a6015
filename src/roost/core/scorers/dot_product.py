"""How little free room and demand point the same way: 1 - the mean of free times asked over resources.

Each is a share of the largest node's total. In steps of a hundredth: nodes that hardly differ are equal and fill up
in order; finer steps scatter the work over all of them.
"""

import numpy as np

from roost.core.fleet import Fleet, Ints
from roost.core.scorers import ONE, share, share_one
from roost.model.workload import Ask

RESOURCES = ("cpu", "memory", "disk", "gpu")
STEP = ONE // 100


def score(fleet: Fleet, ask: Ask) -> Ints:
    """The scores of all rows."""
    along = np.zeros(len(fleet), np.int64)
    parts = _parts(fleet, ask)
    for resource, largest, wanted in parts:
        free = np.maximum(fleet.free(resource), 0)
        along += share(free, np.full(len(fleet), largest)) * wanted // ONE
    return (ONE - along // max(1, len(parts))) // STEP * STEP


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    """The score of one row."""
    along = 0
    parts = _parts(fleet, ask)
    for resource, largest, wanted in parts:
        free = max(fleet.total[resource].item(row) - fleet.used[resource].item(row), 0)
        along += share_one(free, largest) * wanted // ONE
    return (ONE - along // max(1, len(parts))) // STEP * STEP


def _parts(fleet: Fleet, ask: Ask) -> list[tuple[str, int, int]]:
    """Resources that the fleet has, the largest total of each, and the share of it that is asked for."""
    largest: list[tuple[str, int]] | None = fleet.derived.get("largest")
    if largest is None:
        totals = [(each, int(fleet.total[each].max(initial=0))) for each in RESOURCES if each in fleet.total]
        largest = fleet.derived["largest"] = [(each, total) for each, total in totals if total]
    asked = dict(ask.resources)
    return [(each, total, share_one(asked.get(each, 0), total)) for each, total in largest]
