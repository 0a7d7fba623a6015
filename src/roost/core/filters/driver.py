"""A node must have the driver that runs this kind of work."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask, rows: "np.typing.NDArray[np.int64] | None") -> Mask | None:
    """Nodes that have the driver."""
    facts = fleet.facts if rows is None else [fleet.facts[row] for row in rows]
    return np.array([ask.driver in each.drivers for each in facts], np.bool_)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which driver is missing."""
    return f"driver: has no {ask.driver} driver"
