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
    """Offline, cordoned, draining and a pool that has failed are different troubles."""
    offline = int(np.count_nonzero(failing & ~fleet.online))
    parts = [f"{offline} offline"] if offline else []
    why: dict[str, list[str]] = {}
    for row in np.flatnonzero(failing & fleet.online).tolist():
        name = fleet.names[row]
        why.setdefault(fleet.closed.get(name, "draining"), []).append(name)
    for words, names in why.items():
        is_one = len(names) == 1 and words != "draining"
        parts.append(f"node {names[0]} is {words}" if is_one else f"{len(names)} {words}")
    return "status: " + ", ".join(parts)
