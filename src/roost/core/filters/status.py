"""Only nodes that are in touch and in service take new work."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask, rows: "np.typing.NDArray[np.int64] | None") -> Mask | None:
    """Nodes that are open for work."""
    return fleet.open if rows is None else fleet.open[rows]


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Offline and draining are different troubles."""
    offline = int(np.count_nonzero(failing & ~fleet.online))
    draining = int(np.count_nonzero(failing & fleet.online))
    parts = [f"{offline} offline"] if offline else []
    parts += [f"{draining} draining"] if draining else []
    return "status: " + ", ".join(parts)
