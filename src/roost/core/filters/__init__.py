"""Filters: each says no in words a user can read. Their order here is the order in which blockers are told."""

from collections.abc import Callable
from typing import NamedTuple

from roost.core.filters import capacity, driver, pool, require, resources, status
from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask


class Static(NamedTuple):
    """A filter by its name: a mask over all rows (None: all say yes), and words for the rows that say no."""

    name: str
    mask: Callable[[Fleet, Ask], Mask | None]
    words: Callable[[Fleet, Ask, Mask], str]


class Dynamic(NamedTuple):
    """A filter whose answer changes with every placement, so it can also be asked about one row."""

    name: str
    mask: Callable[[Fleet, Ask], Mask]
    words: Callable[[Fleet, Ask, Mask], str]
    allows: Callable[[Fleet, Ask, int], bool]


#: What only changes when a node joins, leaves or tells of itself anew: who fails here will never do as it is.
STATIC = (
    Static("pool", pool.mask, pool.words),
    Static("driver", driver.mask, driver.words),
    Static("require", require.mask, require.words),
    Static("capacity", capacity.mask, capacity.words),
)
#: What changes with every placement.
DYNAMIC = (
    Dynamic("status", status.mask, status.words, status.allows),
    Dynamic("resources", resources.mask, resources.words, resources.allows),
)
