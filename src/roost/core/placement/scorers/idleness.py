"""How little of a node is allocated: 1 - (0.4 cpu + 0.4 memory + 0.2 disk), each as a share of its total."""

import numpy as np

from roost.core.placement.scorers import SCORE_MAX, WEIGHT_SUM, WEIGHTS, share, share_one
from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask


def score(fleet: Fleet, ask: Ask) -> Ints:
    busy = np.zeros(len(fleet), np.int64)
    for resource, weight in WEIGHTS:
        if resource in fleet.total:
            busy += weight * share(fleet.used[resource], fleet.total[resource])
    return SCORE_MAX - busy // WEIGHT_SUM


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    busy = 0
    for resource, weight in WEIGHTS:
        if resource in fleet.total:
            busy += weight * share_one(fleet.used[resource].item(row), fleet.total[resource].item(row))
    return SCORE_MAX - busy // WEIGHT_SUM
