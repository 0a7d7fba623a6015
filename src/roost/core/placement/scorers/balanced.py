"""Keep free resources useful: on nodes with GPUs by their fragmentation, on others by the scarcest resource.

With GPUs, the gain is how much less of the free GPU stays unused in the end (typical shares are placed until none
fits), less half the price of the model: what typical work bound to it would take. In steps of a tenth of a GPU, so that
similar nodes are equal and fill up in order. Nodes without GPUs are all one step above a loss; the best of them has the
least left of the resource that typical work uses up first.
"""

import numpy as np

from roost.core.placement.gpu.fragmentation import DeviceClass, shape_of
from roost.core.placement.gpu.fragmentation_gain import PRICE, best_device, gain_of, gains_of, prices, scarcest
from roost.core.placement.scorers import SCORE_MAX
from roost.core.state.fleet import GPU, Fleet, Ints
from roost.model.records.workload import Ask

STEP = GPU // 10
LEVELS = 1_000  # half of them above zero: gains of up to 50 GPUs differ
FINE = SCORE_MAX // LEVELS  # within a level, for nodes without GPUs
HALF = 2  # a price counts half: at full price a scarce model stays empty while others wait


def score(fleet: Fleet, ask: Ask) -> Ints:
    has = fleet.device_total.any(axis=1)
    scores = np.where(has, 0, LEVELS // 2 * FINE + _tightness(fleet, ask))
    if not has.any():
        return scores
    wanted = shape_of(ask).gpu
    cost = prices(fleet)[1] * wanted
    for kind, rows, gains in gains_of(fleet, ask, DeviceClass.lost_late_all):
        weight = max(1, kind.wanting)
        worth = (gains * (HALF * PRICE) - cost[rows] * weight) // (HALF * PRICE * STEP * weight)
        scores[rows] = np.clip(worth + LEVELS // 2, 0, LEVELS - 1) * FINE
    return scores


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    if not fleet.device_total[row].any():
        return LEVELS // 2 * FINE + _tightness_one(fleet, ask, row)
    kind, gains = gain_of(fleet, ask, row, DeviceClass.lost_late)
    if not gains:
        return 0
    weight = max(1, kind.wanting)
    gain = max([gain for _, gain in gains])
    cost = prices(fleet)[0][fleet.facts[row].gpu_model] * shape_of(ask).gpu
    worth = (gain * (HALF * PRICE) - cost * weight) // (HALF * PRICE * STEP * weight)
    return min(max(worth + LEVELS // 2, 0), LEVELS - 1) * FINE


def devices(fleet: Fleet, ask: Ask, row: int) -> tuple[int, ...]:
    return best_device(fleet, ask, row, DeviceClass.lost_late, lambda _, gain: gain)


def _tightness(fleet: Fleet, ask: Ask) -> Ints:
    resource = scarcest(fleet, ask)
    if not resource:
        return np.zeros(len(fleet), np.int64)
    total = fleet.total[resource]
    left = np.clip(fleet.free(resource) - dict(ask.resources).get(resource, 0), 0, total)
    return np.where(total > 0, (FINE - 1) - (FINE - 1) * left // np.maximum(total, 1), 0)


def _tightness_one(fleet: Fleet, ask: Ask, row: int) -> int:
    resource = scarcest(fleet, ask)
    total = fleet.total[resource].item(row) if resource else 0
    left = fleet.free_one(resource, row) - dict(ask.resources).get(resource, 0) if total else 0
    return (FINE - 1) - (FINE - 1) * min(max(left, 0), total) // total if total else 0
