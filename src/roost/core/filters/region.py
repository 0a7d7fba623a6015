"""Work that names regions goes to nodes of these regions only."""

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes of the regions asked for."""
    if not ask.regions:
        return None
    return fleet.said_of(("region", ask.regions), lambda name, facts: facts.region in ask.regions)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which region was wanted."""
    return f"region: not in {' or '.join(ask.regions)}"
