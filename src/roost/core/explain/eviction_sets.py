"""Whose end would make room: the smallest sets of what holds room on one node, exactly up to three, else few enough."""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np

from roost.core.placement.filters import DYNAMIC
from roost.core.placement.score_cache import fits_when_empty
from roost.core.placement.select import affinity_mask
from roost.core.state.allocation import Allocation, allocation_of, selectors_of
from roost.core.state.state import State, overlay
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload

EXACT_SIZE = 3
NODES_MAX = 128  # looked at, those that lack least first: 100 us each with a hundred instances
SUMS_MAX = 20_000  # sets whose amounts are added up, 1 us each
CHECKS_MAX = 500  # sets that are tried on a node, some 20 us each
SETS_MAX = 8  # found, and no more are looked for: only the first few are ever tried
GREEDY_NODES_MAX = 8  # where more than three have to go, only these are looked at
ALIKE_MAX = EXACT_SIZE  # of instances that hold the same, so many are enough to look at


class EvictionSet(NamedTuple):
    node: str
    instances: tuple[Instance, ...]


def smallest_eviction_sets(state: State, workload: Workload) -> list[EvictionSet]:
    """Sets of equal and smallest size, the least important and youngest first. Empty: no end would help."""
    search = _Search(overlay(state), workload)
    nodes = nearest_nodes(state, workload)
    for size in range(1, EXACT_SIZE + 1):
        found = list(islice((found_set for name in nodes for found_set in search.of_size(name, size)), SETS_MAX))
        if found:
            return sorted(found, key=_cost)
    greedy = [found_set for name in nodes[:GREEDY_NODES_MAX] if (found_set := search.greedy(name)) is not None]
    return sorted(greedy, key=_cost)


def nearest_nodes(state: State, workload: Workload) -> list[str]:
    """Nodes that would do if they were empty enough, those that lack least first, up to NODES_MAX."""
    fleet, ask = state.fleet, workload.policy.ask
    rows = np.flatnonzero(fits_when_empty(fleet, ask) & fleet.open)
    lacking = np.zeros(len(rows), np.int64)
    for resource, amount in ask.resources:
        lacking += np.maximum(amount - fleet.free(resource)[rows], 0) * 1_000 // amount
    best = rows[np.argsort(lacking, kind="stable")[:NODES_MAX]]
    return [fleet.names[row] for row in best.tolist()]


def _cost(found: EvictionSet) -> tuple[int, int, str]:
    return len(found.instances), -min(instance.token for instance in found.instances), found.node


class _Search:
    """One search, on a copy from which instances are taken and to which they are put back."""

    def __init__(self, state: State, workload: Workload) -> None:
        self._state = state
        self._fleet = state.fleet
        self._ask = workload.policy.ask
        self._subjects = selectors_of(workload.project, workload.key, workload.policy.labels)
        self._fits = fits_when_empty(state.fleet, self._ask)
        affinity = self._ask.affinity
        self._selectors = {affinity.selector, *(rule.selector for rule in affinity.rules)} if affinity else set()
        self._cache: dict[str, list[Instance]] = {}
        self._sums = self._checks = 0

    def of_size(self, name: str, size: int) -> Iterator[EvictionSet]:
        row = self._fleet.row(name)
        lacking = {
            resource: amount - self._fleet.total[resource].item(row) + self._fleet.used[resource].item(row)
            for resource, amount in self._ask.resources
        }
        lacking = {resource: amount for resource, amount in lacking.items() if amount > 0}
        for chosen in combinations(self._different(name), size):
            self._sums += 1
            if self._sums > SUMS_MAX or self._checks > CHECKS_MAX:
                return
            if self._is_enough(lacking, chosen) and self._fits_without(name, chosen):
                yield EvictionSet(name, chosen)

    def greedy(self, name: str) -> EvictionSet | None:
        """The youngest one after the other until it fits, then without those that need not go."""
        chosen: list[Instance] = []
        for instance in self._youngest_first(name):
            chosen.append(instance)
            if self._fits_without(name, chosen):
                break
        else:
            return None
        for instance in list(chosen):
            rest = [other_instance for other_instance in chosen if other_instance is not instance]
            if self._fits_without(name, rest):
                chosen = rest
        return EvictionSet(name, tuple(chosen))

    def _youngest_first(self, name: str) -> list[Instance]:
        """The least important first, of those the youngest: little is lost with it."""
        spec_of = self._state.spec_of
        allocated = [instance for instance in self._state.allocated[name].values() if not instance.prefilled_behind]
        return sorted(allocated, key=lambda item: (spec_of(item).policy.priority, -item.token))

    def _different(self, name: str) -> list[Instance]:
        """Of instances with equal allocations a few are enough: one can stand for the other."""
        if name in self._cache:
            return self._cache[name]
        alike: dict[object, int] = {}
        found = self._cache[name] = []
        for instance in self._youngest_first(name):
            kind = self._kind(allocation_of(self._state.spec_of(instance), instance))
            alike[kind] = alike.get(kind, 0) + 1
            if alike[kind] <= ALIKE_MAX:
                found.append(instance)
        return found

    def _kind(self, claim: Allocation) -> object:
        """The part of an allocation that matters to this ask."""
        return (
            claim.resources,
            (claim.devices, claim.device_milli) if self._ask.gpu_count else (),
            claim.ports if self._ask.ports else (),
            tuple(subject for subject in claim.selectors if subject in self._selectors),
            tuple(item for item in claim.anti_affinity if item[0] in self._subjects),
        )

    def _is_enough(self, lacking: dict[str, int], chosen: Sequence[Instance]) -> bool:
        """Whether the plain resources add up; asked first because it is quick."""
        asks = [self._state.spec_of(instance).policy.ask.resources for instance in chosen]
        return all(
            sum(allocated for ask in asks for name, allocated in ask if name == resource) >= amount
            for resource, amount in lacking.items()
        )

    def _fits_without(self, name: str, chosen: Sequence[Instance]) -> bool:
        fleet, row = self._fleet, self._fleet.row(name)
        self._checks += 1
        claims = [allocation_of(self._state.spec_of(instance), instance) for instance in chosen]
        for allocation in claims:
            fleet.take(name, allocation, -1, is_trial=True)
        yes = all(node_filter.allows(fleet, self._ask, row) for node_filter in DYNAMIC)
        if yes:
            social = affinity_mask(fleet, self._ask, self._subjects, self._fits)
            yes = social is None or bool(social[row])
        for allocation in claims:
            fleet.take(name, allocation, is_trial=True)
        return yes
