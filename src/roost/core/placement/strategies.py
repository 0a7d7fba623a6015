"""Strategies: a name, scorers with weights, and a way to pick among eligible nodes."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from roost.core.placement.filters.gpu import devices_of
from roost.core.placement.scorers import Scorer, balanced, calmness, dot_product, fgd, idleness, roominess, tightness
from roost.core.state.fleet import Fleet, Ints, Scores
from roost.model.errors import Invalid
from roost.model.records.workload import Ask

#: From scores (below 0: not eligible), the row chosen last (-1: none) and a random number: the row to take.
Pick = Callable[[Scores, int, int], int]

#: The GPUs to take on a row.
Devices = Callable[[Fleet, Ask, int], tuple[int, ...]]

DEFAULT = "least_loaded"


class Strategy(NamedTuple):
    name: str
    scorers: tuple[tuple[Scorer, int], ...]
    pick: Pick
    cursor: bool = False  # remembers the node it chose last
    chance: bool = False  # picks by a random number
    typical: bool = False  # needs the typical mix of work
    devices: Devices = devices_of  # which GPUs of the node are taken

    def score(self, fleet: Fleet, ask: Ask) -> Ints:
        """The weighted mean of the scorers for all rows, in 0..SCORE_MAX."""
        total = np.zeros(len(fleet), np.int64)
        for scorer, weight in self.scorers:
            total += weight * scorer.score(fleet, ask)
        return total // max(1, sum(weight for _, weight in self.scorers))

    def score_one(self, fleet: Fleet, ask: Ask, row: int) -> int:
        total = weights = 0
        for scorer, weight in self.scorers:
            total += weight * scorer.score_one(fleet, ask, row)
            weights += weight
        return total // max(1, weights)


def pick_best(scores: Scores, last: int, drawn: int) -> int:
    """The highest score; of equal ones the first by name."""
    row = int(scores.argmax())
    return row if scores[row] >= 0 else -1


def pick_after(scores: Scores, last: int, drawn: int) -> int:
    """The next eligible row after the one chosen last; after the last row, the first."""
    return _from(scores, last + 1)


def pick_onward(scores: Scores, last: int, drawn: int) -> int:
    """The row chosen last as long as it is eligible, then the next one."""
    return _from(scores, max(last, 0))


def pick_drawn(scores: Scores, last: int, drawn: int) -> int:
    eligible = np.flatnonzero(scores >= 0)
    return int(eligible[drawn % len(eligible)]) if len(eligible) else -1


def _from(scores: Scores, start: int) -> int:
    eligible = scores >= 0
    start = start if start < len(scores) else 0
    for part, offset in ((eligible[start:], start), (eligible[:start], 0)):
        if len(part) and part[row := int(part.argmax())]:
            return row + offset
    return -1


STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        Strategy("least_loaded", ((idleness, 1),), pick_best),
        Strategy("least_used", ((calmness, 1),), pick_best),
        Strategy("best_fit", ((tightness, 1),), pick_best),
        Strategy("worst_fit", ((roominess, 1),), pick_best),
        Strategy("first_fit", (), pick_best),
        Strategy("next_fit", (), pick_onward, cursor=True),
        Strategy("round_robin", (), pick_after, cursor=True),
        Strategy("random", (), pick_drawn, chance=True),
        Strategy("dot_product", ((dot_product, 1),), pick_best),
        Strategy("fgd", ((fgd, 1),), pick_best, typical=True, devices=fgd.devices),
        Strategy("balanced", ((balanced, 1),), pick_best, typical=True, devices=balanced.devices),
    )
}


def strategy_named(name: str) -> Strategy:
    return STRATEGIES.get(name) or STRATEGIES[DEFAULT]


def check_strategy(name: str, path: str) -> None:
    """Refuse an unknown strategy. An empty name is valid: the default is used."""
    if name and name not in STRATEGIES:
        existing = ", ".join(sorted(STRATEGIES))
        raise Invalid(path, f"there is no strategy {name!r:.80}; known are {existing}", code="invalid_strategy")
