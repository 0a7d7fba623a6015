"""Pools, which may be for some projects only, regions, and drivers of nodes."""

from roost.core.placement.filters.isolation import project_mask
from roost.core.state.fleet import Fleet, Mask, all_of
from roost.model.records.workload import Ask


def pool_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes of the pools of the ask, or of their fallbacks."""
    if not ask.pools:
        return None
    accepted = accepted_by(fleet, ask)
    return fleet.field_mask(("pool", ask.pools), "pool", lambda pool: pool in accepted)


def explain_pool(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    others = [name for name in accepted_by(fleet, ask) if name not in ask.pools]
    instead = f", nor in {' or '.join(others)} in its place" if others else ""
    return f"pool: not in {' or '.join(ask.pools)}{instead}"


def accepted_by(fleet: Fleet, ask: Ask) -> dict[str, None]:
    """The pools that an ask names, and the fallbacks of those that have failed."""
    found: dict[str, None] = {}
    for name in ask.pools:
        while name and name not in found:
            found[name] = None
            name = fleet.fallbacks.get(name, "")
    return found


def open_to(fleet: Fleet, project: str, ask: Ask) -> Mask | None:
    """Nodes where a project may have such work at all, as administrators have set it; None: all nodes."""
    return all_of((pools_open_to(fleet, project), project_mask(fleet, project, ask)))


def pools_open_to(fleet: Fleet, project: str) -> Mask | None:
    """Nodes of pools that are for all projects, or for this one; None: all nodes."""
    if not fleet.owners:
        return None
    owners = fleet.owners
    return fleet.field_mask(("for", project), "pool", lambda pool: project in owners.get(pool, (project,)))


def region_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    if not ask.regions:
        return None
    return fleet.field_mask(("region", ask.regions), "region", lambda region: region in ask.regions)


def driver_mask(fleet: Fleet, ask: Ask) -> Mask:
    return fleet.field_mask(("driver", ask.driver), "drivers", lambda drivers: ask.driver in drivers)


def explain_driver(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    return "driver: offers no containers" if ask.driver == "container" else f"driver: has no {ask.driver} driver"
