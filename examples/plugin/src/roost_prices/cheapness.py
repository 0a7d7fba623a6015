"""A scorer: how cheap a node is by its label `price`, from 0 (the price ceiling, or no price) to ONE (free of charge).

Scores are integers, so that every machine decides the same; `score_one` must say exactly what `score` says.
"""

import numpy as np

from roost.core.placement.scorers import SCORE_MAX
from roost.core.state.fleet import Fleet, Ints
from roost.model.records.workload import Ask

CEILING = 100_000  # thousandths: prices from 100.000 on are all the same


def score(fleet: Fleet, ask: Ask) -> Ints:
    """The scores of all rows."""
    return np.array([_score(facts.labels) for facts in fleet.facts], np.int64)


def score_one(fleet: Fleet, ask: Ask, row: int) -> int:
    """The score of one row."""
    return _score(fleet.facts[row].labels)


def _score(labels: dict[str, str]) -> int:
    whole, _, part = labels.get("price", "").partition(".")
    if not whole.isdecimal() or (part and not part.isdecimal()):
        return 0
    price = int(whole) * 1_000 + int(part[:3].ljust(3, "0"))
    return SCORE_MAX - min(price, CEILING) * (SCORE_MAX // CEILING)
