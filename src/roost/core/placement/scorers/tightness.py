"""How little would be left on a node after a placement: 1 - what remains, each as a share of its total."""

import numpy as np

from roost.core.placement.scorers import SCORE_MAX, WEIGHT_SUM, WEIGHTS, share, share_one
from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask


def score(fleet: Fleet, ask: Ask) -> Ints:
    left = np.zeros(len(fleet), np.int64)
    asked = dict(ask.resources)
    for resource, weight in WEIGHTS:
        if resource in fleet.total:
            used, total = fleet.used[resource], fleet.total[resource]
            left += weight * share(np.maximum(total - used - asked.get(resource, 0), 0), total)
    return SCORE_MAX - left // WEIGHT_SUM


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    left = 0
    asked = dict(ask.resources)
    for resource, weight in WEIGHTS:
        if resource in fleet.total:
            used, total = fleet.used[resource].item(row), fleet.total[resource].item(row)
            left += weight * share_one(max(total - used - asked.get(resource, 0), 0), total)
    return SCORE_MAX - left // WEIGHT_SUM
