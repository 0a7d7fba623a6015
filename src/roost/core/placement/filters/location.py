"""Where a node is: pools, which may be for some projects only, regions, and the driver that a node must have."""

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask


def pool_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes of the pools asked for, or of those that stand in for them."""
    if not ask.pools:
        return None
    accepted = accepted_by(fleet, ask)
    return fleet.cached_mask(("pool", ask.pools), lambda name, facts: facts.pool in accepted)


def explain_pool(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which pool was wanted, and which would do instead."""
    others = [name for name in accepted_by(fleet, ask) if name not in ask.pools]
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
    return fleet.cached_mask(("for", project), lambda name, facts: project in owners.get(facts.pool, (project,)))


def region_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes of the regions asked for."""
    if not ask.regions:
        return None
    return fleet.cached_mask(("region", ask.regions), lambda name, facts: facts.region in ask.regions)


def explain_region(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which region was wanted."""
    return f"region: not in {' or '.join(ask.regions)}"


def driver_mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes that have the driver."""
    return fleet.cached_mask(("driver", ask.driver), lambda name, facts: ask.driver in facts.drivers)


def explain_driver(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which driver is missing."""
    return f"driver: has no {ask.driver} driver"
