"""How little free and asked resources point the same way: 1 - the mean of free times asked over resources.

Each is a share of the largest node's total. In steps of a hundredth: similar nodes are equal and fill up in order;
finer steps scatter the work over all of them.
"""

import numpy as np

from roost.core.placement.scorers import SCORE_MAX, share, share_one
from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask

RESOURCES = ("cpu", "memory", "disk", "gpu")
STEP = SCORE_MAX // 100


def score(fleet: Fleet, ask: Ask) -> Ints:
    along = np.zeros(len(fleet), np.int64)
    parts = _parts(fleet, ask)
    for resource, largest, wanted in parts:
        free = np.maximum(fleet.free(resource), 0)
        along += share(free, np.full(len(fleet), largest)) * wanted // SCORE_MAX
    return (SCORE_MAX - along // max(1, len(parts))) // STEP * STEP


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    along = 0
    parts = _parts(fleet, ask)
    for resource, largest, wanted in parts:
        along += share_one(max(fleet.free_one(resource, row), 0), largest) * wanted // SCORE_MAX
    return (SCORE_MAX - along // max(1, len(parts))) // STEP * STEP


def _parts(fleet: Fleet, ask: Ask) -> list[tuple[str, int, int]]:
    """Resources that the fleet has, the largest total of each, and the share of it that is asked for."""
    largest: list[tuple[str, int]] | None = fleet.derived.get("largest")
    if largest is None:
        totals = [
            (resource, int(fleet.total[resource].max(initial=0))) for resource in RESOURCES if resource in fleet.total
        ]
        largest = fleet.derived["largest"] = [(resource, total) for resource, total in totals if total]
    asked = dict(ask.resources)
    return [(name, total, share_one(asked.get(name, 0), total)) for name, total in largest]
