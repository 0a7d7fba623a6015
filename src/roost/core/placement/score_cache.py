"""Shortlists: one score vector per ask, kept up to date by looking only at rows that changed."""

from collections import OrderedDict

import numpy as np

from roost.core.placement.filters import DYNAMIC, STATIC
from roost.core.placement.filters.availability import tolerates
from roost.core.placement.filters.rules import evaluate_on_nodes
from roost.core.placement.filters.spread import fewest
from roost.core.placement.scorers import SCORE_MAX, blend
from roost.core.placement.strategies import Strategy
from roost.core.state.fleet import Fleet, Ints, Mask, Scores
from roost.core.state.topology import NO_DOMAIN
from roost.model.records.node import FLAKY
from roost.model.records.workload import Ask
from roost.model.spec.placement import SOFT

NOT_ELIGIBLE = -1  # any score is 0 or more
SCORE_CACHES_MAX = 512  # 8 bytes a node each: 40 MB at 10,000 nodes
ONE_BY_ONE_MIN = 8  # so many rows are always scored one by one, 3 us each: a scan of any fleet costs 30 us at least
ONE_BY_ONE_SHARE = 64  # in large fleets one row costs as much as scanning this many
WEIGHT_FULL = 100  # the weight of the strategy's own score
FLAKY_WEIGHT = 400  # of staying away from a node where runs fail: more than all a strategy has to say, for such a node
# looks better the more fails there; less than a hard rule, for it may be all there is
SOFT_TAINT = 50  # the weight of staying away from a node with a soft taint


class ScoreCache:
    """Scores of all nodes for one ask and strategy; NOT_ELIGIBLE where a filter says no."""

    __slots__ = (
        "ask",
        "dynamic",
        "eligible",
        "fits",
        "layout",
        "position",
        "scores",
        "strategy",
        "preference_weight",
        "preferences",
    )

    def __init__(self, ask: Ask, strategy: Strategy) -> None:
        self.ask = ask
        self.strategy = strategy
        self.dynamic = tuple([node_filter for node_filter in DYNAMIC if node_filter.concerns(ask)])
        self.preferences: Ints | None = None
        self.preference_weight = 0
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
            self.fits = fits_when_empty(fleet, self.ask)
            self.preferences, self.preference_weight = node_preferences(fleet, self.ask)
            self.layout = fleet.layout
        eligible = self.fits
        for node_filter in self.dynamic:
            eligible = eligible & node_filter.mask(fleet, self.ask)
        scores = self.strategy.score(fleet, self.ask)
        if self.preferences is not None:
            scores = blend(scores, WEIGHT_FULL, self.preferences, self.preference_weight)
        self.scores = np.where(eligible, scores, NOT_ELIGIBLE).astype(np.int32)
        self.eligible = int(np.count_nonzero(eligible))

    def _score_one(self, fleet: Fleet, row: int) -> int:
        if not self.fits[row]:
            return NOT_ELIGIBLE
        for node_filter in self.dynamic:
            if not node_filter.allows(fleet, self.ask, row):
                return NOT_ELIGIBLE
        score = self.strategy.score_one(fleet, self.ask, row)
        if self.preferences is not None:
            score = (score * WEIGHT_FULL + self.preferences.item(row)) // (WEIGHT_FULL + self.preference_weight)
        return score


ScoreCaches = OrderedDict[tuple[Ask, str], ScoreCache]


def cached_scores(caches: ScoreCaches, ask: Ask, strategy: Strategy) -> ScoreCache:
    """The cache of an ask under a strategy; the one unused for longest is dropped for a new one."""
    key = (ask, strategy.name)
    found = caches.get(key)
    if found is None:
        found = caches[key] = ScoreCache(ask, strategy)
        if len(caches) > SCORE_CACHES_MAX:
            caches.popitem(last=False)
    else:
        caches.move_to_end(key)
    return found


def fits_when_empty(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes that could take the ask if they were empty and in service."""
    result = np.ones(len(fleet), np.bool_)
    for node_filter in STATIC:
        mask = node_filter.mask(fleet, ask)
        if mask is not None:
            result &= mask
    return result


Preferences = tuple[
    Ints | None, int
]  # the sum of weight times 0..ONE per row, and the sum of weights; nothing wished: None, 0


def node_preferences(fleet: Fleet, ask: Ask) -> Preferences:
    """What is wished of nodes; it only changes when the nodes do."""
    total: Ints | None = None
    weights = 0
    for rule, weight in ask.prefer:
        total, weights = _add(total, weights, evaluate_on_nodes(fleet, rule), weight)
    clean = fleet.cached_mask(
        ("soft", ask.tolerate), lambda name, facts: not facts.taints or _is_clean(ask, facts.taints)
    )
    if not clean.all():
        total, weights = _add(total, weights, clean, SOFT_TAINT)
    steady = fleet.cached_mask(("steady",), lambda name, facts: FLAKY not in facts.taints)
    if not steady.all():
        total, weights = _add(total, weights, steady, FLAKY_WEIGHT)
    return total, weights


def _is_clean(ask: Ask, taints: tuple[str, ...]) -> bool:
    return not any(taint.endswith(SOFT) and taint != FLAKY and not tolerates(ask, taint) for taint in taints)


def affinity_preferences(fleet: Fleet, ask: Ask, fits: Mask) -> Preferences:
    """What is wished of those who are there."""
    total: Ints | None = None
    weights = 0
    if ask.affinity is None:
        return total, weights
    for rule in ask.affinity.rules:
        if rule.weight:
            there = fleet.count_in_domain(rule.selector, rule.by) > 0
            weight = rule.weight if rule.kind == "near" else -rule.weight
            total, weights = _add(total, weights, there, weight)
    for spread in ask.affinity.spread:
        if spread.weight:
            above = fleet.count_in_domain(ask.affinity.selector, spread.by) - fewest(fleet, ask, spread, fits)
            even = SCORE_MAX // (1 + np.maximum(above, 0))
            total, weights = _add(
                total, weights, np.where(fleet.domains(spread.by) == NO_DOMAIN, 0, even), spread.weight
            )
    return total, weights


def _add(total: Ints | None, weights: int, granted: Ints | Mask, weight: int) -> tuple[Ints, int]:
    share = granted * SCORE_MAX if granted.dtype == np.bool_ else granted
    if weight < 0:
        share = SCORE_MAX - share
    added = share * abs(weight)
    return (added if total is None else total + added), weights + abs(weight)
