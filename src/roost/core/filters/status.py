"""Only nodes that are in touch and in service take new work."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes that are open for work."""
    return fleet.open


def allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    """Whether one node is open for work."""
    return fleet.open.item(row)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Offline and draining are different troubles."""
    offline = int(np.count_nonzero(failing & ~fleet.online))
    draining = int(np.count_nonzero(failing & fleet.online))
    parts = [f"{offline} offline"] if offline else []
    parts += [f"{draining} draining"] if draining else []
    return "status: " + ", ".join(parts)
