"""Work that names pools goes to nodes of these pools only."""

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes of the pools asked for."""
    if not ask.pools:
        return None
    return fleet.said_of(("pool", ask.pools), lambda name, facts: facts.pool in ask.pools)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which pool was wanted."""
    return f"pool: not in {' or '.join(ask.pools)}"
