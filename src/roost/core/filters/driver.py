"""A node must have the driver that runs this kind of work."""

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes that have the driver."""
    return fleet.said_of(("driver", ask.driver), lambda name, facts: ask.driver in facts.drivers)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which driver is missing."""
    return f"driver: has no {ask.driver} driver"
