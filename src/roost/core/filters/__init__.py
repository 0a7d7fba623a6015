"""Filters: each says no in words a user can read. Their order here is the order in which blockers are told."""

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from roost.core.filters import capacity, driver, pool, require, resources, status
from roost.core.fleet import Fleet, Mask
from roost.model.workload import Ask

Rows = "np.typing.NDArray[np.int64] | None"


class Filter(Protocol):
    """A mask over rows (None means all rows), and words for the rows that say no."""

    def __call__(self, fleet: Fleet, ask: Ask, rows: "np.typing.NDArray[np.int64] | None") -> Mask | None: ...


class Named(NamedTuple):
    """A filter with its name and its words."""

    name: str
    mask: Filter
    words: Callable[[Fleet, Ask, Mask], str]


#: What only changes when a node joins, leaves or tells of itself anew: who fails here will never do as it is.
STATIC = (
    Named("pool", pool.mask, pool.words),
    Named("driver", driver.mask, driver.words),
    Named("require", require.mask, require.words),
    Named("capacity", capacity.mask, capacity.words),
)
#: What changes with every placement.
DYNAMIC = (
    Named("status", status.mask, status.words),
    Named("resources", resources.mask, resources.words),
)
