"""How much would be left over on a node after placing: the opposite of tightness."""

from roost.core.placement.scorers import SCORE_MAX, tightness
from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask


def score(fleet: Fleet, ask: Ask) -> Ints:
    """The scores of all rows."""
    return SCORE_MAX - tightness.score(fleet, ask)


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    """The score of one row."""
    return SCORE_MAX - tightness.score_one(fleet, ask, row)
