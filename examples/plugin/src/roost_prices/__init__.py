"""A plug-in for Roost: a filter, a scorer, and a strategy that takes the cheapest node."""

from roost.core.placement.filters import StaticFilter
from roost.core.placement.registry import Registry
from roost.core.placement.strategies import Strategy, pick_best
from roost_prices import cheapness, quarantine


def register(registry: Registry) -> None:
    """Called once when a server starts, and by `roost sim`."""
    registry.add_filter(StaticFilter("quarantine", quarantine.mask, quarantine.explain))
    registry.add_strategy(Strategy("cheapest_first", ((cheapness, 1),), pick_best))
