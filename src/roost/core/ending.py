"""Whose end would make room: the smallest sets of what holds room on one node, exactly up to three, else few enough."""

from collections.abc import Iterator, Sequence
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np

from roost.core.choose import social_mask
from roost.core.claim import Claim, claim_of, subjects_of
from roost.core.filters import DYNAMIC
from roost.core.shortlist import could_fit
from roost.core.state import State
from roost.core.whatif import glance
from roost.model.instance import Instance
from roost.model.workload import Workload

EXACT_SIZE = 3
NODES_MAX = 128  # looked at, those that lack least first: 100 us each with a hundred instances
SUMS_MAX = 20_000  # sets whose amounts are added up, 1 us each
LOOKS_MAX = 500  # sets that are tried on a node, some 20 us each
SETS_MAX = 8  # found, and no more are looked for: only the first few are ever tried
GREEDY_NODES_MAX = 8  # where more than three have to go, only these are looked at
ALIKE_MAX = EXACT_SIZE  # of instances that hold the same, so many are enough to look at


class Set(NamedTuple):
    """Instances of one node that would have to end."""

    node: str
    instances: tuple[Instance, ...]


def smallest_sets(state: State, workload: Workload) -> list[Set]:
    """Sets of equal and smallest size, the least important and youngest first. Empty: no end would help."""
    search = _Search(glance(state), workload)
    nodes = nearest_nodes(state, workload)
    for size in range(1, EXACT_SIZE + 1):
        found = list(islice((each for name in nodes for each in search.of_size(name, size)), SETS_MAX))
        if found:
            return sorted(found, key=_cost)
    greedy = [each for name in nodes[:GREEDY_NODES_MAX] if (each := search.greedy(name)) is not None]
    return sorted(greedy, key=_cost)


def nearest_nodes(state: State, workload: Workload) -> list[str]:
    """Nodes that would do if they were empty enough, those that lack least first, up to NODES_MAX."""
    fleet, ask = state.fleet, workload.policy.ask
    rows = np.flatnonzero(could_fit(fleet, ask) & fleet.open)
    lacking = np.zeros(len(rows), np.int64)
    for resource, amount in ask.resources:
        lacking += np.maximum(amount - fleet.free(resource)[rows], 0) * 1_000 // amount
    best = rows[np.argsort(lacking, kind="stable")[:NODES_MAX]]
    return [fleet.names[row] for row in best.tolist()]


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
        self._spoken_of = self._whom_it_speaks_of()
        self._known: dict[str, list[Instance]] = {}
        self._sums = self._looks = 0

    def of_size(self, name: str, size: int) -> Iterator[Set]:
        """All sets of one size on a node that make enough room."""
        row = self._fleet.row(name)
        lacking = {
            resource: amount - self._fleet.total[resource].item(row) + self._fleet.used[resource].item(row)
            for resource, amount in self._ask.resources
        }
        lacking = {resource: amount for resource, amount in lacking.items() if amount > 0}
        for chosen in combinations(self._different(name), size):
            self._sums += 1
            if self._sums > SUMS_MAX or self._looks > LOOKS_MAX:
                return
            if self._is_enough(lacking, chosen) and self._fits_without(name, chosen):
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
        """The least important first, of those the youngest: little is lost with it. Some have no room of their own."""
        spec_of = self._state.spec_of
        held = [each for each in self._state.held[name].values() if not each.behind]
        return sorted(held, key=lambda each: (spec_of(each).policy.priority, -each.token))

    def _different(self, name: str) -> list[Instance]:
        """Of those that hold the same in every respect that matters, a few are enough: one can stand for the other."""
        if name in self._known:
            return self._known[name]
        alike: dict[object, int] = {}
        found = self._known[name] = []
        for instance in self._youngest_first(name):
            kind = self._kind(claim_of(self._state.spec_of(instance), instance))
            alike[kind] = alike.get(kind, 0) + 1
            if alike[kind] <= ALIKE_MAX:
                found.append(instance)
        return found

    def _kind(self, claim: Claim) -> object:
        """What a claim holds as far as it matters to this ask."""
        return (
            claim.resources,
            (claim.devices, claim.device_milli) if self._ask.gpu_count else (),
            claim.ports if self._ask.ports else (),
            tuple(each for each in claim.subjects if each in self._spoken_of),
            tuple(each for each in claim.apart if each[0] in self._subjects),
        )

    def _whom_it_speaks_of(self) -> frozenset[str]:
        company = self._ask.company
        return (
            frozenset() if company is None else frozenset({company.subject, *(each.subject for each in company.rules)})
        )

    def _is_enough(self, lacking: dict[str, int], chosen: Sequence[Instance]) -> bool:
        """Whether the plain resources add up; asked first because it is quick."""
        asks = [self._state.spec_of(each).policy.ask.resources for each in chosen]
        return all(
            sum(held for ask in asks for name, held in ask if name == resource) >= amount
            for resource, amount in lacking.items()
        )

    def _fits_without(self, name: str, chosen: Sequence[Instance]) -> bool:
        fleet, row = self._fleet, self._fleet.row(name)
        self._looks += 1
        claims = [claim_of(self._state.spec_of(each), each) for each in chosen]
        for each in claims:
            fleet.take(name, each, -1, is_trial=True)
        yes = all(each.allows(fleet, self._ask, row) for each in DYNAMIC)
        if yes:
            social = social_mask(fleet, self._ask, self._subjects, self._fits)
            yes = social is None or bool(social[row])
        for each in claims:
            fleet.take(name, each, is_trial=True)
        return yes
