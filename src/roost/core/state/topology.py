"""How many instances match each selector on each node, and so in each rack, zone or region.

A selector is a workload (PROJECT/NAME) or a label of workloads (PROJECT?NAME or PROJECT?NAME=VALUE). Counts by domain
are made when a rule first asks for them and kept up to date from then on.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from roost.core.state.shared import Shared

Ints = NDArray[np.int64]
Counts = dict[str, int]  # node -> how many

DOMAIN_KINDS = ("node", "rack", "zone", "region")
NO_DOMAIN = -1  # the domain of a node without a rack, zone or region
SELECTORS_MAX = 2_048  # with counts at a time, 16 bytes a node each at most; all go when there are more


class FleetDomains(Protocol):
    """The part of a fleet that says in which domains its nodes are."""

    layout: int

    def row(self, name: str) -> int: ...
    def domains(self, by: str) -> Ints: ...
    def domain_count(self, by: str) -> int: ...


class TopologyIndex:
    def __init__(self) -> None:
        self.members: dict[str, Counts] = {}
        self.anti_affinity: dict[tuple[str, str], Counts] = {}  # (selector, by) -> nodes of those `apart` from it
        # selector -> (by, repelled) -> the layout for which it was counted, and how many match in each domain
        self._domain_counts: dict[str, dict[tuple[str, bool], tuple[int, Ints]]] = {}

    def __copy__(self) -> "TopologyIndex":
        made = TopologyIndex()
        made.members, made.anti_affinity = Shared(self.members, dict), Shared(self.anti_affinity, dict)
        return made  # counts by domain are made again when a rule asks for them

    def take(
        self, fleet: FleetDomains, name: str, subjects: tuple[str, ...], apart: tuple[tuple[str, str], ...], sign: int
    ) -> None:
        for subject in subjects:
            _count(self.members, subject, name, sign)
            for by, repelled in self._domain_counts.get(subject, ()):
                if not repelled:
                    self._recount(fleet, subject, by, False, name, sign)
        for subject, by in apart:
            _count(self.anti_affinity, (subject, by), name, sign)
            if (by, True) in self._domain_counts.get(subject, ()):
                self._recount(fleet, subject, by, True, name, sign)

    def domain_counts(self, fleet: FleetDomains, subject: str, by: str, *, repelled: bool = False) -> Ints:
        """How many match a selector (or are `apart` from it) in each domain of a kind, and a 0 for NO_DOMAIN."""
        found = self._domain_counts.get(subject, {}).get((by, repelled))
        if found is not None and found[0] == fleet.layout:
            return found[1]
        if len(self._domain_counts) >= SELECTORS_MAX:
            self._domain_counts.clear()
        counts = np.zeros(fleet.domain_count(by) + 1, np.int64)
        self._domain_counts.setdefault(subject, {})[by, repelled] = (fleet.layout, counts)
        existing = self.anti_affinity.get((subject, by), {}) if repelled else self.members.get(subject, {})
        for name, number in existing.items():
            self._recount(fleet, subject, by, repelled, name, number)
        return counts

    def _recount(self, fleet: FleetDomains, subject: str, by: str, repelled: bool, name: str, added: int) -> None:
        layout, counts = self._domain_counts[subject][by, repelled]
        row = fleet.row(name)
        if layout == fleet.layout and row >= 0 and (domain := fleet.domains(by).item(row)) != NO_DOMAIN:
            counts[domain] += added


def _count(counts: dict[Any, Counts], key: object, name: str, sign: int) -> None:
    here = counts.get(key)
    if here is None:
        here = counts[key] = {}
    number = here.get(name, 0) + sign
    assert number >= 0, f"no instance of {key} is on {name}"
    if number:
        here[name] = number
    else:
        here.pop(name, None)
        if not here:
            del counts[key]
