"""How little of a node is used: 1 - the mean of cpu and memory as measured, at least half of what is allocated.

New work has not been measured yet; without that floor a whole batch would go to one node.
"""

import numpy as np

from roost.core.placement.scorers import SCORE_MAX, share, share_one
from roost.core.state.fleet import MEASURED, Fleet, Ints
from roost.model.records.workload import Ask

FLOOR = 2  # allocated resources count this many times less than measured ones


def score(fleet: Fleet, ask: Ask) -> Ints:
    busy = np.zeros(len(fleet), np.int64)
    for resource in MEASURED:
        floor = share(fleet.used[resource], fleet.total[resource]) // FLOOR if resource in fleet.total else 0
        busy += np.maximum(fleet.measured[resource], floor)
    return SCORE_MAX - busy // len(MEASURED)


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    busy = 0
    for resource in MEASURED:
        floor = 0
        if resource in fleet.total:
            floor = share_one(fleet.used[resource].item(row), fleet.total[resource].item(row)) // FLOOR
        busy += max(fleet.measured[resource].item(row), floor)
    return SCORE_MAX - busy // len(MEASURED)
