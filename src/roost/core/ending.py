"""Whose end would make room: the smallest sets of what holds room on one node, exactly up to three, else few enough."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from roost.core.choose import social_mask
from roost.core.claim import claim_of, subjects_of
from roost.core.filters import DYNAMIC
from roost.core.shortlist import could_fit
from roost.core.state import State
from roost.core.whatif import glance
from roost.model.instance import Instance
from roost.model.workload import Workload

EXACT_SIZE = 3
NODES_MAX = 256  # looked at, those that lack least first: 100 us each at most
LOOKS_MAX = 3_000  # sets tried on nodes, some 15 us each
GREEDY_NODES_MAX = 8  # where more than three have to go, only these are looked at
ALIKE_MAX = EXACT_SIZE  # of instances that hold the same, so many are enough to look at


class Set(NamedTuple):
    """Instances of one node that would have to end."""

    node: str
    instances: tuple[Instance, ...]


def smallest_sets(state: State, workload: Workload) -> list[Set]:
    """Sets of equal and smallest size, the least important and youngest first. Empty: no end would help."""
    search = _Search(glance(state), workload)
    nodes = search.nodes()
    for size in range(1, EXACT_SIZE + 1):
        found = [each for name in nodes for each in search.of_size(name, size)]
        if found:
            return sorted(found, key=_cost)
    greedy = [each for name in nodes[:GREEDY_NODES_MAX] if (each := search.greedy(name)) is not None]
    return sorted(greedy, key=_cost)


def _cost(found: Set) -> tuple[int, int, str]:
    return len(found.instances), -min(each.token for each in found.instances), found.node


class _Search:
    """One search, on a copy from which instances are taken and to which they are put back."""

    def __init__(self, state: State, workload: Workload) -> None:
        self._state = state
        self._fleet = state.fleet
        self._ask = workload.policy.ask
        self._subjects = subjects_of(workload.project, workload.key, workload.policy.labels)
        self._fits = could_fit(state.fleet, self._ask)
        self._looks = 0

    def nodes(self) -> list[str]:
        """Nodes that would do if they were empty enough, those that lack least first."""
        fleet = self._fleet
        rows = np.flatnonzero(self._fits & fleet.open)
        lacking = np.zeros(len(rows), np.int64)
        for resource, amount in self._ask.resources:
            lacking += np.maximum(amount - fleet.free(resource)[rows], 0) * 1_000 // amount
        best = rows[np.argsort(lacking, kind="stable")[:NODES_MAX]]
        names = [fleet.names[row] for row in best.tolist()]
        return [name for name in names if self._fits_without(name, tuple(self._state.held[name].values()))]

    def of_size(self, name: str, size: int) -> Iterator[Set]:
        """All sets of one size on a node that make enough room."""
        for chosen in combinations(self._different(name), size):
            if self._looks < LOOKS_MAX and self._has_enough(name, chosen) and self._fits_without(name, chosen):
                yield Set(name, chosen)

    def greedy(self, name: str) -> Set | None:
        """The youngest one after the other until it fits, then without those that need not go."""
        chosen: list[Instance] = []
        for instance in self._youngest_first(name):
            chosen.append(instance)
            if self._fits_without(name, chosen):
                break
        else:
            return None
        for instance in list(chosen):
            rest = [each for each in chosen if each is not instance]
            if self._fits_without(name, rest):
                chosen = rest
        return Set(name, tuple(chosen))

    def _youngest_first(self, name: str) -> list[Instance]:
        """The least important first, of those the youngest: little is lost with it."""
        workloads = self._state.workloads
        held = self._state.held[name].values()
        return sorted(held, key=lambda each: (workloads[each.workload].policy.priority, -each.token))

    def _different(self, name: str) -> list[Instance]:
        """Of those that hold the same in every respect a few are enough: one can stand for the other."""
        alike: dict[object, int] = {}
        found = []
        for instance in self._youngest_first(name):
            claim = claim_of(self._state.workloads[instance.workload], instance)
            alike[claim] = alike.get(claim, 0) + 1
            if alike[claim] <= ALIKE_MAX:
                found.append(instance)
        return found

    def _has_enough(self, name: str, chosen: Sequence[Instance]) -> bool:
        """Whether the plain resources add up; asked first because it is quick."""
        row = self._fleet.row(name)
        given: dict[str, int] = {}
        for instance in chosen:
            for resource, amount in self._state.workloads[instance.workload].policy.ask.resources:
                given[resource] = given.get(resource, 0) + amount
        return all(
            self._fleet.free(resource).item(row) + given.get(resource, 0) >= amount
            for resource, amount in self._ask.resources
        )

    def _fits_without(self, name: str, chosen: Sequence[Instance]) -> bool:
        fleet, row = self._fleet, self._fleet.row(name)
        self._looks += 1
        claims = [claim_of(self._state.workloads[each.workload], each) for each in chosen]
        for each in claims:
            fleet.take(name, each, -1, is_trial=True)
        yes = all(each.allows(fleet, self._ask, row) for each in DYNAMIC)
        if yes:
            social = social_mask(fleet, self._ask, self._subjects, self._fits)
            yes = social is None or bool(social[row])
        for each in claims:
            fleet.take(name, each, is_trial=True)
        return yes
