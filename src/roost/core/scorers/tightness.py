"""How little would be left over on a node after placing."""

import numpy as np

from roost.core.fleet import Fleet, Ints
from roost.core.scorers import ONE, WEIGHT_SUM, WEIGHTS, columns, share
from roost.model.workload import Ask


def score(fleet: Fleet, ask: Ask, rows: "np.typing.NDArray[np.int64] | None") -> Ints:
    """1 - what remains, each resource as a share of its own total, same weights as idleness."""
    left = np.zeros(len(fleet) if rows is None else len(rows), np.int64)
    asked = dict(ask.resources)
    for resource, weight in WEIGHTS:
        column = columns(fleet, resource, rows)
        if column is not None:
            used, total = column
            left += weight * share(np.maximum(total - used - asked.get(resource, 0), 0), total)
    return ONE - left // WEIGHT_SUM
