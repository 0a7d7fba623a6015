"""Score caches: one score vector per ask, updated only in the rows that changed."""

from collections import OrderedDict

import numpy as np

from roost.core.placement.filters import DYNAMIC, STATIC
from roost.core.placement.filters.availability import tolerates
from roost.core.placement.filters.rules import evaluate_on_nodes
from roost.core.placement.filters.spread import fewest
from roost.core.placement.scorers import SCORE_MAX, blend, image
from roost.core.placement.strategies import Strategy
from roost.core.state.fleet import Fleet, Ints, Mask, Scores, all_of
from roost.core.state.topology import NO_DOMAIN
from roost.model.records.node import FLAKY
from roost.model.records.workload import Ask
from roost.model.spec.placement import SOFT

NOT_ELIGIBLE = -1  # any score is 0 or more
SCORE_CACHES_MAX = 512  # 8 bytes a node each: 40 MB at 10,000 nodes
ONE_BY_ONE_MIN = 8  # so many rows are always scored one by one, 3 us each: a scan of any fleet costs 30 us at least
ONE_BY_ONE_SHARE = 64  # in large fleets one row costs as much as scanning this many
WEIGHT_FULL = 100  # the weight of the strategy's own score
# The weight of avoiding a flaky node: more than a strategy has, because such a node looks better the more fails there;
# less than a hard rule, because it may be the only node.
FLAKY_WEIGHT = 400
SOFT_TAINT = 50  # the weight of avoiding a node with a soft taint
IMAGE_WEIGHT = 50  # of a node that has the image: it may be half as idle as one that has to fetch it


class ScoreCache:
    """Scores of all nodes for one ask and strategy; NOT_ELIGIBLE where a filter refuses."""

    def __init__(self, ask: Ask, strategy: Strategy) -> None:
        self.ask = ask
        self.strategy = strategy
        self.dynamic = [node_filter for node_filter in DYNAMIC if node_filter.concerns(ask)]
        self.preferences: Ints | None = None
        self.preference_weight = 0
        self.layout = -1
        self.position = 0
        self.fits: Mask = np.zeros(0, np.bool_)
        self.scores: Scores = np.zeros(0, np.int32)
        self.eligible = 0  # how many nodes pass every filter

    def refresh(self, fleet: Fleet) -> None:
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
            self.preference_weight += IMAGE_WEIGHT if self.ask.image else 0
            self.layout = fleet.layout
        eligible = self.fits
        for node_filter in self.dynamic:
            eligible = eligible & node_filter.mask(fleet, self.ask)
        scores = self.strategy.score(fleet, self.ask)
        if self.preference_weight:
            scores = blend(scores, WEIGHT_FULL, self._granted(fleet), self.preference_weight)
        self.scores = np.where(eligible, scores, NOT_ELIGIBLE).astype(np.int32)
        self.eligible = int(np.count_nonzero(eligible))

    def _score_one(self, fleet: Fleet, row: int) -> int:
        if not self.fits[row]:
            return NOT_ELIGIBLE
        for node_filter in self.dynamic:
            if not node_filter.allows(fleet, self.ask, row):
                return NOT_ELIGIBLE
        score = self.strategy.score_one(fleet, self.ask, row)
        if self.preference_weight:
            granted = self.preferences.item(row) if self.preferences is not None else 0
            granted += IMAGE_WEIGHT * image.score_one(fleet, self.ask, row) if self.ask.image else 0
            score = (score * WEIGHT_FULL + granted) // (WEIGHT_FULL + self.preference_weight)
        return score

    def _granted(self, fleet: Fleet) -> Ints:
        """Preferences of the nodes, and that for the image, which changes between changes of the nodes."""
        granted = self.preferences if self.preferences is not None else np.zeros(len(fleet), np.int64)
        return granted + IMAGE_WEIGHT * image.score(fleet, self.ask) if self.ask.image else granted


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
    found = all_of(node_filter.mask(fleet, ask) for node_filter in STATIC)
    return np.ones(len(fleet), np.bool_) if found is None else found


#: The sum of weight times 0..SCORE_MAX per row, and the sum of weights; without preferences: None, 0.
Preferences = tuple[Ints | None, int]


def node_preferences(fleet: Fleet, ask: Ask) -> Preferences:
    """Preferences for nodes; they only change when the nodes do."""
    parts = [(evaluate_on_nodes(fleet, rule), weight) for rule, weight in ask.prefer]
    clean = fleet.field_mask(("soft", ask.tolerate), "taints", lambda taints: _is_clean(ask, taints))
    if not clean.all():
        parts.append((clean, SOFT_TAINT))
    steady = fleet.field_mask(("steady",), "taints", lambda taints: FLAKY not in taints)
    if not steady.all():
        parts.append((steady, FLAKY_WEIGHT))
    return _summed([(mask * SCORE_MAX, weight) for mask, weight in parts])


def _is_clean(ask: Ask, taints: tuple[str, ...]) -> bool:
    return not any(taint.endswith(SOFT) and taint != FLAKY and not tolerates(ask, taint) for taint in taints)


def affinity_preferences(fleet: Fleet, ask: Ask, fits: Mask) -> Preferences:
    if ask.affinity is None:
        return None, 0
    parts = []
    for rule in ask.affinity.rules:
        if rule.weight:
            there = fleet.count_in_domain(rule.selector, rule.by) > 0
            parts.append((there * SCORE_MAX, rule.weight if rule.kind == "near" else -rule.weight))
    for spread in ask.affinity.spread:
        if spread.weight:
            above = fleet.count_in_domain(ask.affinity.selector, spread.by) - fewest(fleet, ask, spread, fits)
            even = SCORE_MAX // (1 + np.maximum(above, 0))
            parts.append((np.where(fleet.domains(spread.by) == NO_DOMAIN, 0, even), spread.weight))
    return _summed(parts)


def _summed(parts: list[tuple[Ints, int]]) -> Preferences:
    """A negative weight counts what a row lacks of SCORE_MAX."""
    total: Ints | None = None
    for shares, weight in parts:
        added = (shares if weight >= 0 else SCORE_MAX - shares) * abs(weight)
        total = added if total is None else total + added
    return total, sum(abs(weight) for _, weight in parts)
