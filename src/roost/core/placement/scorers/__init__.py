"""Scorers: every node gets an integer in 0..ONE, higher is better; all rows at once, or exactly the same for one."""

from typing import Protocol

import numpy as np

from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask

SCORE_MAX = 1_000_000  # a score of 1; integers choose the same node on every machine
WEIGHTS = (("cpu", 4), ("memory", 4), ("disk", 2))  # in tenths: 0.4 cpu + 0.4 memory + 0.2 disk
WEIGHT_SUM = 10
HALF = 1_000  # ONE is its square
AT_ONCE_MAX = (
    1 << 63
) // SCORE_MAX  # up to here an amount times ONE stays below 63 bits; above, amounts go in two halves


class Scorer(Protocol):
    """A module with these two functions. Small changes go by rows of one, because numpy has fixed costs."""

    def score(self, fleet: Fleet, ask: Ask) -> Ints:
        """The scores of all rows."""

    def score_one(self, fleet: Fleet, ask: Ask, row: int) -> int:
        """The score of one row."""


def blend(score: Ints, weight: int, wishes: Ints, wished: int) -> Ints:
    """A score of some weight together with wishes (weights times 0..ONE) of a summed weight, in 0..ONE again."""
    return (score * weight + wishes) // (weight + wished)


def share(part: Ints, total: Ints) -> Ints:
    """part / total in 0..ONE, 0 where the total is 0; exact in integers even for pebibytes.

    A node that came back with less than it uses counts as full, not as worse than that: a score is never below 0.
    """
    part = np.minimum(part, total)
    whole = np.maximum(total, 1)
    if int(total.max(initial=0)) < AT_ONCE_MAX:
        shares: Ints = part * SCORE_MAX // whole
    else:
        first, rest = np.divmod(part * HALF, whole)
        shares = first * HALF + rest * HALF // whole
    return shares


def share_one(part: int, total: int) -> int:
    """The same for one node."""
    return min(part, total) * SCORE_MAX // total if total else 0
