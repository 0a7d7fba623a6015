"""Filters: each says no in words a user can read. Their order here is the order in which blockers are told."""

from collections.abc import Callable
from typing import NamedTuple

from roost.core.placement.filters import affinity, availability, gpu, location, ports, resources, rules, spread
from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask


class StaticFilter(NamedTuple):
    """A filter by its name: a mask over all rows (None: all say yes), and words for the rows that say no."""

    name: str
    mask: Callable[[Fleet, Ask], Mask | None]
    explain: Callable[[Fleet, Ask, Mask], str]


class DynamicFilter(NamedTuple):
    """A filter whose answer changes with every placement, so it can also be asked about one row."""

    name: str
    mask: Callable[[Fleet, Ask], Mask]
    explain: Callable[[Fleet, Ask, Mask], str]
    allows: Callable[[Fleet, Ask, int], bool]
    concerns: Callable[[Ask], bool] = lambda ask: True  # whether it can say no to an ask at all


class AffinityFilter(NamedTuple):
    """A filter about who else is where: one placement changes the answer for a whole zone, so it is always asked anew.

    It is told by which subjects the instance is known, and which nodes could take it if they were empty.
    """

    name: str
    mask: Callable[[Fleet, Ask, tuple[str, ...], Mask], Mask | None]
    explain: Callable[[Fleet, Ask, tuple[str, ...], Mask], str]


#: What only changes when a node joins, leaves or tells of itself anew: who fails here will never do as it is.
STATIC: list[StaticFilter] = [
    StaticFilter("pool", location.pool_mask, location.explain_pool),
    StaticFilter("region", location.region_mask, location.explain_region),
    StaticFilter("driver", location.driver_mask, location.explain_driver),
    StaticFilter("require", rules.require_mask, rules.explain_require),
    StaticFilter("taints", availability.taints_mask, availability.explain_taints),
    StaticFilter("gpu_model", gpu.gpu_model_mask, gpu.explain_gpu_model),
    StaticFilter("capacity", resources.capacity_mask, resources.explain_capacity),
]
#: What changes with every placement.
DYNAMIC: list[DynamicFilter] = [
    DynamicFilter("status", availability.status_mask, availability.explain_status, availability.status_allows),
    DynamicFilter("resources", resources.resources_mask, resources.explain_resources, resources.resources_allows),
    DynamicFilter("gpu", gpu.gpu_mask, gpu.explain_gpu, gpu.gpu_allows, lambda ask: ask.gpu_count > 0),
    DynamicFilter("ports", ports.ports_mask, ports.explain_ports, ports.ports_allows, lambda ask: bool(ask.ports)),
    DynamicFilter("use", rules.use_mask, rules.explain_use, rules.use_allows, lambda ask: bool(ask.require_now)),
]
AFFINITY: list[AffinityFilter] = [
    AffinityFilter("near", affinity.near_mask, affinity.explain_near),
    AffinityFilter("apart", affinity.apart_mask, affinity.explain_apart),
    AffinityFilter("spread", spread.spread_mask, spread.explain_spread),
    AffinityFilter("per_node", spread.per_node_mask, spread.explain_per_node),
]
