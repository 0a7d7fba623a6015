"""Shortlists: one score vector per ask, kept up to date by looking only at rows that changed."""

from collections import OrderedDict

import numpy as np

from roost.core.filters import DYNAMIC, STATIC
from roost.core.fleet import Fleet, Ints, Mask, Scores
from roost.core.scorers import blend
from roost.core.strategies import Strategy
from roost.core.wishes import FULL, about_nodes
from roost.model.workload import Ask

NOT_ELIGIBLE = -1  # any score is 0 or more
SHORTLISTS_MAX = 512  # 8 bytes a node each: 40 MB at 10,000 nodes
ONE_BY_ONE_MIN = 8  # so many rows are always scored one by one, 3 us each: a scan of any fleet costs 30 us at least
ONE_BY_ONE_SHARE = 64  # in large fleets one row costs as much as scanning this many


class Shortlist:
    """Scores of all nodes for one ask and strategy; NOT_ELIGIBLE where a filter says no."""

    __slots__ = ("ask", "dynamic", "eligible", "fits", "layout", "position", "scores", "strategy", "wished", "wishes")

    def __init__(self, ask: Ask, strategy: Strategy) -> None:
        self.ask = ask
        self.strategy = strategy
        self.dynamic = tuple([each for each in DYNAMIC if each.concerns(ask)])
        self.wishes: Ints | None = None
        self.wished = 0
        self.layout = -1
        self.position = 0
        self.fits: Mask = np.zeros(0, np.bool_)
        self.scores: Scores = np.zeros(0, np.int32)
        self.eligible = 0  # how many nodes every filter says yes to

    def refresh(self, fleet: Fleet) -> None:
        """Bring the scores up to now."""
        rows = fleet.changed_since(self.position) if self.layout == fleet.layout else None
        if rows is None or len(rows) > max(ONE_BY_ONE_MIN, len(fleet) // ONE_BY_ONE_SHARE):
            self._scan(fleet)
        else:
            for row in rows:
                before, score = self.scores.item(row), self._score_one(fleet, row)
                self.eligible += (score >= 0) - (before >= 0)
                self.scores[row] = score
        self.position = fleet.position

    def _scan(self, fleet: Fleet) -> None:
        if self.layout != fleet.layout:
            self.fits = could_fit(fleet, self.ask)
            self.wishes, self.wished = about_nodes(fleet, self.ask)
            self.layout = fleet.layout
        eligible = self.fits
        for each in self.dynamic:
            eligible = eligible & each.mask(fleet, self.ask)
        scores = self.strategy.score(fleet, self.ask)
        if self.wishes is not None:
            scores = blend(scores, FULL, self.wishes, self.wished)
        self.scores = np.where(eligible, scores, NOT_ELIGIBLE).astype(np.int32)
        self.eligible = int(np.count_nonzero(eligible))

    def _score_one(self, fleet: Fleet, row: int) -> int:
        if not self.fits[row]:
            return NOT_ELIGIBLE
        for each in self.dynamic:
            if not each.allows(fleet, self.ask, row):
                return NOT_ELIGIBLE
        score = self.strategy.score_one(fleet, self.ask, row)
        if self.wishes is not None:
            score = (score * FULL + self.wishes.item(row)) // (FULL + self.wished)
        return score


class Shortlists:
    """The shortlists in use; the one unused for longest goes first."""

    def __init__(self) -> None:
        self._kept: OrderedDict[tuple[Ask, str], Shortlist] = OrderedDict()

    def of(self, ask: Ask, strategy: Strategy) -> Shortlist:
        """The shortlist of an ask under a strategy."""
        key = (ask, strategy.name)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = Shortlist(ask, strategy)
            if len(self._kept) > SHORTLISTS_MAX:
                self._kept.popitem(last=False)
        else:
            self._kept.move_to_end(key)
        return found


def could_fit(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes that could take the ask if they were empty and in service."""
    result = np.ones(len(fleet), np.bool_)
    for each in STATIC:
        mask = each.mask(fleet, ask)
        if mask is not None:
            result &= mask
    return result
