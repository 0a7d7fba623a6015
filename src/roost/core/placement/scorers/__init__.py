"""Scorers: an integer in 0..SCORE_MAX for every node, higher is better; for all rows, or exactly the same for one."""

from typing import Protocol

import numpy as np

from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask

SCORE_MAX = 1_000_000  # a score of 1; integers choose the same node on every machine
WEIGHTS = (("cpu", 4), ("memory", 4), ("disk", 2))  # in tenths: 0.4 cpu + 0.4 memory + 0.2 disk
WEIGHT_SUM = 10
HALF = 1_000  # SCORE_MAX is its square
AT_ONCE_MAX = (1 << 63) // SCORE_MAX  # such an amount times SCORE_MAX has 63 bits; larger ones go in two halves


class Scorer(Protocol):
    """A module with these two functions. Few changed rows are scored one by one, because numpy has fixed costs."""

    def score(self, fleet: Fleet, ask: Ask) -> Ints: ...

    def score_one(self, fleet: Fleet, ask: Ask, row: int) -> int: ...


def blend(score: Ints, weight: int, preferences: Ints, preference_weight: int) -> Ints:
    """A score of some weight with preferences (weight times 0..SCORE_MAX), in 0..SCORE_MAX again."""
    return (score * weight + preferences) // (weight + preference_weight)


def share(part: Ints, total: Ints) -> Ints:
    """part / total in 0..SCORE_MAX, 0 where the total is 0; exact in integers even for pebibytes.

    A node that came back with less than it uses counts as full: a score is never below 0.
    """
    part = np.minimum(part, total)
    whole = np.maximum(total, 1)
    if int(total.max(initial=0)) < AT_ONCE_MAX:
        return np.asarray(part * SCORE_MAX // whole)
    first, rest = np.divmod(part * HALF, whole)
    return np.asarray(first * HALF + rest * HALF // whole)


def share_one(part: int, total: int) -> int:
    return min(part, total) * SCORE_MAX // total if total else 0
