"""What is wished rather than required: preferences about nodes, soft taints, soft rules about company.

A wish of weight W moves a node by W hundredths of the range of its strategy's score; a negative one is a wish that
it be not so. All wishes together with the score are brought back into 0..ONE.
"""

import numpy as np

from roost.core.company import NOWHERE
from roost.core.filters.require import verdicts
from roost.core.filters.spread import fewest
from roost.core.filters.taints import tolerates
from roost.core.fleet import Fleet, Ints, Mask
from roost.core.scorers import ONE
from roost.model.node import FLAKY
from roost.model.placement import SOFT
from roost.model.workload import Ask

FULL = 100  # the weight of the strategy's own score
FLAKY_WEIGHT = 400  # of staying away from a node where runs fail: more than all a strategy has to say, for such a node
# looks better the more fails there; less than a hard rule, for it may be all there is
SOFT_TAINT = 50  # the weight of staying away from a node with a soft taint
Wishes = tuple[
    Ints | None, int
]  # the sum of weight times 0..ONE per row, and the sum of weights; nothing wished: None, 0


def about_nodes(fleet: Fleet, ask: Ask) -> Wishes:
    """What is wished of nodes; it only changes when the nodes do."""
    total: Ints | None = None
    weights = 0
    for rule, weight in ask.prefer:
        total, weights = _add(total, weights, verdicts(fleet, rule), weight)
    clean = fleet.said_of(("soft", ask.tolerate), lambda name, facts: not facts.taints or _is_clean(ask, facts.taints))
    if not clean.all():
        total, weights = _add(total, weights, clean, SOFT_TAINT)
    steady = fleet.said_of(("steady",), lambda name, facts: FLAKY not in facts.taints)
    if not steady.all():
        total, weights = _add(total, weights, steady, FLAKY_WEIGHT)
    return total, weights


def _is_clean(ask: Ask, taints: tuple[str, ...]) -> bool:
    return not any(each.endswith(SOFT) and each != FLAKY and not tolerates(ask, each) for each in taints)


def about_company(fleet: Fleet, ask: Ask, fits: Mask) -> Wishes:
    """What is wished of those who are there."""
    total: Ints | None = None
    weights = 0
    if ask.company is None:
        return total, weights
    for rule in ask.company.rules:
        if rule.weight:
            there = fleet.here(rule.subject, rule.by) > 0
            weight = rule.weight if rule.kind == "near" else -rule.weight
            total, weights = _add(total, weights, there, weight)
    for spread in ask.company.spread:
        if spread.weight:
            above = fleet.here(ask.company.subject, spread.by) - fewest(fleet, ask, spread, fits)
            even = ONE // (1 + np.maximum(above, 0))
            total, weights = _add(total, weights, np.where(fleet.places(spread.by) == NOWHERE, 0, even), spread.weight)
    return total, weights


def _add(total: Ints | None, weights: int, granted: Ints | Mask, weight: int) -> tuple[Ints, int]:
    share = granted * ONE if granted.dtype == np.bool_ else granted
    if weight < 0:
        share = ONE - share
    added = share * abs(weight)
    return (added if total is None else total + added), weights + abs(weight)
