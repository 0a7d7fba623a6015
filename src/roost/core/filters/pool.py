"""Work that names pools goes to nodes of these pools only."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes of the pools asked for."""
    if not ask.pools:
        return None
    return np.array([each.pool in ask.pools for each in fleet.facts], np.bool_)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which pool was wanted."""
    return f"pool: not in {' or '.join(ask.pools)}"
