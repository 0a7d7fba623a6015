"""A workload may limit how many of its instances share a node."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes that have fewer than the limit."""
    if ask.company is None or not ask.company.per_node:
        return None
    return np.asarray(fleet.here(ask.company.subject, "node") < ask.company.per_node)


def words(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], failing: Mask) -> str:
    """The limit."""
    assert ask.company is not None
    return f"per_node: has {ask.company.per_node} of it already"
