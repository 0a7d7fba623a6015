"""Who is where: how many instances of each subject are on each node, and so in each rack, zone or region.

A subject is a workload (PROJECT/NAME) or a label of workloads (PROJECT?NAME or PROJECT?NAME=VALUE). Counts by place are
made when a rule first asks for them and kept up to date from then on.
"""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from roost.core.state.shared import Shared

Ints = NDArray[np.int64]
Counts = dict[str, int]  # node -> how many

DOMAIN_KINDS = ("node", "rack", "zone", "region")
NO_DOMAIN = -1  # the place of a node that does not say in which rack, zone or region it is
DOMAIN_COUNTS_MAX = 4_096  # kept at a time, 8 bytes a node each at most; all go when there are more


class FleetDomains(Protocol):
    """What of a fleet says where its nodes are."""

    layout: int

    def row(self, name: str) -> int: ...

    def domains(self, by: str) -> Ints: ...

    def domain_count(self, by: str) -> int: ...


class DomainCounts:
    """How many of one subject are in each place. Some more, one for all: `version` counts the changes."""

    __slots__ = ("counts", "layout", "version")

    def __init__(self) -> None:
        self.layout = -1
        self.version = 0
        self.counts: Ints = np.zeros(0, np.int64)


class TopologyIndex:
    """Subjects and where they are. `members` counts them; `repelled` counts those who must not meet them."""

    def __init__(self) -> None:
        self.members: dict[str, Counts] = {}
        self.anti_affinity: dict[tuple[str, str], Counts] = {}  # (subject, by) -> nodes of those who are apart from it
        self._domain_counts: dict[tuple[str, str, bool], DomainCounts] = {}

    def __copy__(self) -> "TopologyIndex":
        made = TopologyIndex()
        made.members, made.anti_affinity = Shared(self.members, dict), Shared(self.anti_affinity, dict)
        return made  # counts by domain are made again when a rule asks for them

    def take(
        self, fleet: FleetDomains, name: str, subjects: tuple[str, ...], apart: tuple[tuple[str, str], ...], sign: int
    ) -> None:
        """Somebody came to a node, or left it."""
        for subject in subjects:
            _count(self.members, subject, name, sign)
            if self._domain_counts:
                for by in DOMAIN_KINDS:
                    self._recount(fleet, (subject, by, False), name, sign)
        for subject, by in apart:
            _count(self.anti_affinity, (subject, by), name, sign)
            self._recount(fleet, (subject, by, True), name, sign)

    def domain_counts(self, fleet: FleetDomains, subject: str, by: str, *, repelled: bool = False) -> DomainCounts:
        """How many of a subject (or of those who are apart from it) are in each place of a kind."""
        key = (subject, by, repelled)
        census = self._domain_counts.get(key)
        if census is None:
            if len(self._domain_counts) >= DOMAIN_COUNTS_MAX:
                self._domain_counts.clear()
            census = self._domain_counts[key] = DomainCounts()
        if census.layout != fleet.layout:
            places = fleet.domains(by)
            census.counts = np.zeros(fleet.domain_count(by), np.int64)
            existing = self.anti_affinity.get((subject, by), {}) if repelled else self.members.get(subject, {})
            for name, number in existing.items():
                row = fleet.row(name)
                if row >= 0 and places[row] != NO_DOMAIN:
                    census.counts[places[row]] += number
            census.layout = fleet.layout
            census.version += 1
        return census

    def _recount(self, fleet: FleetDomains, key: tuple[str, str, bool], name: str, sign: int) -> None:
        census = self._domain_counts.get(key)
        if census is None or census.layout != fleet.layout:
            return
        place = fleet.domains(key[1])[fleet.row(name)]
        census.version += 1
        if place != NO_DOMAIN:
            census.counts[place] += sign


def _count(counts: dict[Any, Counts], key: object, name: str, sign: int) -> None:
    here = counts.get(key)
    if here is None:
        here = counts[key] = {}
    number = here.get(name, 0) + sign
    assert number >= 0, f"nobody of {key} is on {name}"
    if number:
        here[name] = number
    else:
        here.pop(name, None)
        if not here:
            del counts[key]
