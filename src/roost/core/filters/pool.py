"""Work that names pools goes to nodes of these pools only."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask, rows: "np.typing.NDArray[np.int64] | None") -> Mask | None:
    """Nodes of the pools asked for."""
    if not ask.pools:
        return None
    facts = fleet.facts if rows is None else [fleet.facts[row] for row in rows]
    return np.array([each.pool in ask.pools for each in facts], np.bool_)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which pool was wanted."""
    return f"pool: not in {' or '.join(ask.pools)}"
