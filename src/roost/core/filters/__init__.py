"""Filters: each says no in words a user can read. Their order here is the order in which blockers are told."""

from collections.abc import Callable
from typing import NamedTuple

from roost.core.filters import (
    apart,
    capacity,
    driver,
    gpu,
    gpu_model,
    near,
    per_node,
    pool,
    ports,
    region,
    require,
    resources,
    spread,
    status,
    taints,
    use,
)  # fmt: skip
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
    concerns: Callable[[Ask], bool] = lambda ask: True  # whether it can say no to an ask at all


class Social(NamedTuple):
    """A filter about who else is where: one placement changes the answer for a whole zone, so it is always asked anew.

    It is told by which subjects the instance is known, and which nodes could take it if they were empty.
    """

    name: str
    mask: Callable[[Fleet, Ask, tuple[str, ...], Mask], Mask | None]
    words: Callable[[Fleet, Ask, tuple[str, ...], Mask], str]


#: What only changes when a node joins, leaves or tells of itself anew: who fails here will never do as it is.
STATIC: list[Static] = [
    Static("pool", pool.mask, pool.words),
    Static("region", region.mask, region.words),
    Static("driver", driver.mask, driver.words),
    Static("require", require.mask, require.words),
    Static("taints", taints.mask, taints.words),
    Static("gpu_model", gpu_model.mask, gpu_model.words),
    Static("capacity", capacity.mask, capacity.words),
]
#: What changes with every placement.
DYNAMIC: list[Dynamic] = [
    Dynamic("status", status.mask, status.words, status.allows),
    Dynamic("resources", resources.mask, resources.words, resources.allows),
    Dynamic("gpu", gpu.mask, gpu.words, gpu.allows, lambda ask: ask.gpu_count > 0),
    Dynamic("ports", ports.mask, ports.words, ports.allows, lambda ask: bool(ask.ports)),
    Dynamic("use", use.mask, use.words, use.allows, lambda ask: bool(ask.require_now)),
]
SOCIAL: list[Social] = [
    Social("near", near.mask, near.words),
    Social("apart", apart.mask, apart.words),
    Social("spread", spread.mask, spread.words),
    Social("per_node", per_node.mask, per_node.words),
]
