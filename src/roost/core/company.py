"""Who is where: how many instances of each subject are on each node, and so in each rack, zone or region.

A subject is a workload (PROJECT/NAME) or a label of workloads (PROJECT?NAME or PROJECT?NAME=VALUE). Counts by place are
made when a rule first asks for them and kept up to date from then on.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from roost.core.fleet import Fleet

Ints = NDArray[np.int64]
Counts = dict[str, int]  # node -> how many

PLACES = ("node", "rack", "zone", "region")
NOWHERE = -1  # the place of a node that does not say in which rack, zone or region it is
CENSUSES_MAX = 4_096  # kept at a time, 8 bytes a node each at most; all go when there are more


class Census:
    """How many of one subject are in each place. Some more, one for all: `version` counts the changes."""

    __slots__ = ("counts", "layout", "version")

    def __init__(self) -> None:
        self.layout = -1
        self.version = 0
        self.counts: Ints = np.zeros(0, np.int64)


class Crowd:
    """Subjects and where they are. `members` counts them; `repelled` counts those who must not meet them."""

    def __init__(self) -> None:
        self.members: dict[str, Counts] = {}
        self.repelled: dict[tuple[str, str], Counts] = {}  # (subject, by) -> nodes of those who are apart from it
        self._censuses: dict[tuple[str, str, bool], Census] = {}

    def take(
        self, fleet: "Fleet", name: str, subjects: tuple[str, ...], apart: tuple[tuple[str, str], ...], sign: int
    ) -> None:
        """Somebody came to a node, or left it."""
        for subject in subjects:
            _count(self.members, subject, name, sign)
            if self._censuses:
                for by in PLACES:
                    self._recount(fleet, (subject, by, False), name, sign)
        for subject, by in apart:
            _count(self.repelled, (subject, by), name, sign)
            self._recount(fleet, (subject, by, True), name, sign)

    def census(self, fleet: "Fleet", subject: str, by: str, *, repelled: bool = False) -> Census:
        """How many of a subject (or of those who are apart from it) are in each place of a kind."""
        key = (subject, by, repelled)
        census = self._censuses.get(key)
        if census is None:
            if len(self._censuses) >= CENSUSES_MAX:
                self._censuses.clear()
            census = self._censuses[key] = Census()
        if census.layout != fleet.layout:
            places = fleet.places(by)
            census.counts = np.zeros(fleet.places_count(by), np.int64)
            known = self.repelled.get((subject, by), {}) if repelled else self.members.get(subject, {})
            for name, number in known.items():
                row = fleet.row(name)
                if row >= 0 and places[row] != NOWHERE:
                    census.counts[places[row]] += number
            census.layout = fleet.layout
            census.version += 1
        return census

    def _recount(self, fleet: "Fleet", key: tuple[str, str, bool], name: str, sign: int) -> None:
        census = self._censuses.get(key)
        if census is None or census.layout != fleet.layout:
            return
        place = fleet.places(key[1])[fleet.row(name)]
        census.version += 1
        if place != NOWHERE:
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
