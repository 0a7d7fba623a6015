"""How much would be left on a node after a placement: the opposite of tightness."""

from roost.core.placement.scorers import SCORE_MAX, tightness
from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask


def score(fleet: Fleet, ask: Ask) -> Ints:
    return SCORE_MAX - tightness.score(fleet, ask)


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    return SCORE_MAX - tightness.score_one(fleet, ask, row)
