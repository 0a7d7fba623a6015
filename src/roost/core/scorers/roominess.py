"""How much would be left over on a node after placing: the opposite of tightness."""

from roost.core.fleet import Fleet, Ints
from roost.core.scorers import ONE, tightness
from roost.model.workload import Ask


def score(fleet: Fleet, ask: Ask) -> Ints:
    """The scores of all rows."""
    return ONE - tightness.score(fleet, ask)


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    """The score of one row."""
    return ONE - tightness.score_one(fleet, ask, row)
