"""How much would be left over on a node after placing."""

import numpy as np

from roost.core.fleet import Fleet, Ints
from roost.core.scorers import ONE, tightness
from roost.model.workload import Ask


def score(fleet: Fleet, ask: Ask, rows: "np.typing.NDArray[np.int64] | None") -> Ints:
    """The opposite of tightness."""
    return ONE - tightness.score(fleet, ask, rows)
