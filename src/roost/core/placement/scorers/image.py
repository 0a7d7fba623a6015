"""Whether a node has the image of a container already: 1, or 0."""

import numpy as np

from roost.core.placement.scorers import SCORE_MAX
from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask
from roost.model.spec.runs.container import image_key


def score(fleet: Fleet, ask: Ask) -> Ints:
    found, key = np.zeros(len(fleet), np.int64), image_key(ask.image)
    for name, images in fleet.images.items():
        if key in images:
            found[fleet.row(name)] = SCORE_MAX
    return found


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    return SCORE_MAX if image_key(ask.image) in fleet.images.get(fleet.names[row], ()) else 0
