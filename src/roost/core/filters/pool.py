"""Work that names pools goes to nodes of these pools only, and nobody to a pool that is for other projects."""

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes of the pools asked for, or of those that stand in for them."""
    if not ask.pools:
        return None
    accepted = accepted_by(fleet, ask)
    return fleet.said_of(("pool", ask.pools), lambda name, facts: facts.pool in accepted)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which pool was wanted, and which would do instead."""
    others = [each for each in accepted_by(fleet, ask) if each not in ask.pools]
    instead = f", nor in {' or '.join(others)} in its place" if others else ""
    return f"pool: not in {' or '.join(ask.pools)}{instead}"


def accepted_by(fleet: Fleet, ask: Ask) -> dict[str, None]:
    """The pools an ask names, and those that take what asked for one that has failed, and so on."""
    found: dict[str, None] = {}
    for name in ask.pools:
        while name and name not in found:
            found[name] = None
            name = fleet.fallbacks.get(name, "")
    return found


def open_to(fleet: Fleet, project: str) -> Mask | None:
    """Nodes of pools that are for everybody, or for this project; None: all are."""
    if not fleet.owners:
        return None
    owners = fleet.owners
    return fleet.said_of(("for", project), lambda name, facts: project in owners.get(facts.pool, (project,)))
