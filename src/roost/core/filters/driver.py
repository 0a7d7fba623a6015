"""A node must have the driver that runs this kind of work."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes that have the driver."""
    return np.array([ask.driver in each.drivers for each in fleet.facts], np.bool_)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which driver is missing."""
    return f"driver: has no {ask.driver} driver"
