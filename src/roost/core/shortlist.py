"""Shortlists: one score vector per ask, kept up to date by looking only at rows that changed."""

from collections import OrderedDict

import numpy as np

from roost.core.filters import DYNAMIC, STATIC
from roost.core.fleet import Fleet, Ints, Mask
from roost.core.strategies import Strategy
from roost.model.workload import Ask

SHORTLISTS_MAX = 512  # 8 bytes a node each: 40 MB at 10,000 nodes
RESCAN_SHARE = 4  # more than a quarter of the rows changed: scanning all is cheaper


class Shortlist:
    """Scores of all nodes for one ask and strategy; below 0 where a filter says no."""

    __slots__ = ("ask", "fits", "layout", "position", "scores", "strategy")

    def __init__(self, ask: Ask, strategy: Strategy) -> None:
        self.ask = ask
        self.strategy = strategy
        self.layout = -1
        self.position = 0
        self.fits: Mask = np.zeros(0, np.bool_)
        self.scores: Ints = np.zeros(0, np.int64)

    def refresh(self, fleet: Fleet) -> Ints:
        """The scores as of now."""
        changed = fleet.changed_since(self.position) if self.layout == fleet.layout else None
        if changed is None or len(changed) * RESCAN_SHARE > len(fleet):
            if self.layout != fleet.layout:
                self.fits = could_fit(fleet, self.ask)
                self.layout = fleet.layout
            self.scores = self._scored(fleet, None, self.fits)
        elif changed:
            rows = np.array(sorted(set(changed)), np.int64)
            self.scores[rows] = self._scored(fleet, rows, self.fits[rows])
        self.position = fleet.position
        return self.scores

    def _scored(self, fleet: Fleet, rows: "np.typing.NDArray[np.int64] | None", fits: Mask) -> Ints:
        eligible = fits
        for each in DYNAMIC:
            mask = each.mask(fleet, self.ask, rows)
            if mask is not None:
                eligible = eligible & mask
        return np.where(eligible, self.strategy.score(fleet, self.ask, rows), -1)


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
        mask = each.mask(fleet, ask, None)
        if mask is not None:
            result &= mask
    return result
