"""How little of a node is in use now."""

import numpy as np

from roost.core.fleet import Fleet, Ints
from roost.core.scorers import ONE, WEIGHT_SUM, WEIGHTS, columns, share
from roost.model.workload import Ask


def score(fleet: Fleet, ask: Ask, rows: "np.typing.NDArray[np.int64] | None") -> Ints:
    """1 - (0.4 cpu + 0.4 memory + 0.2 disk), each as the share in use before placing."""
    busy = np.zeros(len(fleet) if rows is None else len(rows), np.int64)
    for resource, weight in WEIGHTS:
        column = columns(fleet, resource, rows)
        if column is not None:
            busy += weight * share(*column)
    return ONE - busy // WEIGHT_SUM
