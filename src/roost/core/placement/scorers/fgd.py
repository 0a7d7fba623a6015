"""Fragmentation gradient descent: how much a placement lessens the free GPU that typical work cannot use now.

100 sigmoid(gain in whole GPUs), cut to whole hundredths. The steps matter: nodes with similar gains are equal and fill
up in order; without steps work scatters and whole nodes are used up early.
"""

from bisect import bisect_right
from math import ceil, log

import numpy as np

from roost.core.placement.gpu.fragmentation import DeviceClass
from roost.core.placement.gpu.fragmentation_gain import best_device, gain_of, gains_of
from roost.core.placement.scorers import SCORE_MAX
from roost.core.state.fleet import GPU, Fleet, Ints
from roost.model.records.workload import Ask

FINE = 1_000  # gains are compared in thousandths of a thousandth of a GPU
#: The least gain that is worth 1, 2, ... 99 hundredths: where 1 / (1 + exp(-gain)) is that much.
STEPS = [ceil(log(index / (100 - index)) * GPU * FINE) for index in range(1, 100)]
STEP = SCORE_MAX // 100


def score(fleet: Fleet, ask: Ask) -> Ints:
    scores = np.zeros(len(fleet), np.int64)
    for kind, rows, gains in gains_of(fleet, ask, DeviceClass.lost_now_all):
        scores[rows] = np.searchsorted(STEPS, gains * FINE // max(1, kind.wanting + kind.idle), side="right") * STEP
    return scores


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    kind, gains = gain_of(fleet, ask, row, DeviceClass.lost_now)
    return _steps(kind, max([gain for _, gain in gains])) * STEP if gains else 0


def devices(fleet: Fleet, ask: Ask, row: int) -> tuple[int, ...]:
    return best_device(fleet, ask, row, DeviceClass.lost_now, _steps)


def _steps(kind: DeviceClass, gain: int) -> int:
    return bisect_right(STEPS, gain * FINE // max(1, kind.wanting + kind.idle))
