"""A plug-in for Roost: a filter, a scorer, and a strategy that takes the cheapest node."""

from roost.core.filters import Static
from roost.core.plugins import Registry
from roost.core.strategies import Strategy, pick_best
from roost_prices import cheapness, quarantine


def register(registry: Registry) -> None:
    """Called once when a server starts, and by `roost sim`."""
    registry.add_filter(Static("quarantine", quarantine.mask, quarantine.words))
    registry.add_strategy(Strategy("cheapest_first", ((cheapness, 1),), pick_best))
