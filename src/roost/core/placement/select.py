"""The node for an ask: cached scores of all nodes, affinity, and the pick of the strategy."""

from typing import NamedTuple

import msgspec
import numpy as np

from roost.core.placement.filters import AFFINITY
from roost.core.placement.score_cache import (
    NOT_ELIGIBLE,
    WEIGHT_FULL,
    ScoreCache,
    ScoreCaches,
    affinity_preferences,
    cached_scores,
)
from roost.core.placement.scorers import blend
from roost.core.placement.strategies import Strategy
from roost.core.state.fleet import Fleet, Mask, Scores, all_of
from roost.model.records.workload import Ask


class Choice(NamedTuple):
    """The row taken (-1: none is eligible), the strategy and the scores it was chosen by."""

    row: int
    strategy: Strategy
    scores: Scores
    eligible: int
    blocked_by_affinity: bool = False  # it would fit without affinity rules
    unsatisfiable: bool = False  # no node could ever take it


def choose(
    fleet: Fleet,
    shortlists: ScoreCaches,
    ask: Ask,
    strategy: Strategy,
    subjects: tuple[str, ...] = (),
    last: int = -1,
    drawn: int = 0,
    allowed: Mask | None = None,
) -> Choice:
    """`last` is the row that a strategy with a cursor chose last, `drawn` a random number.

    `allowed` are the nodes that are not reserved for others.
    """
    shortlist = cached_scores(shortlists, without_affinity(ask), strategy)
    shortlist.refresh(fleet)
    scores, eligible = shortlist.scores, shortlist.eligible
    if not eligible:
        return Choice(-1, strategy, scores, 0, unsatisfiable=not shortlist.fits.any())
    if allowed is not None:
        scores = np.where(allowed, scores, NOT_ELIGIBLE)
        eligible = int(np.count_nonzero(scores >= 0))
        if not eligible:
            return Choice(-1, strategy, scores, 0)
    if ask.affinity is not None or fleet.topology.anti_affinity:
        before = scores
        scores = _affinity_scores(fleet, shortlist, scores, ask, subjects)
        eligible = int(np.count_nonzero(scores >= 0)) if scores is not before else eligible
        if not eligible:
            return Choice(-1, strategy, scores, 0, blocked_by_affinity=True)
    if not strategy.scorers and (ask.prefer or ask.affinity is not None or shortlist.preference_weight):
        scores = np.where(scores == scores.max(), scores, NOT_ELIGIBLE)  # pick by order among the preferred
    return Choice(strategy.pick(scores, last, drawn), strategy, scores, eligible)


def without_affinity(ask: Ask) -> Ask:
    """Asks that differ only in their affinity rules share a score cache."""
    return ask if ask.affinity is None else msgspec.structs.replace(ask, affinity=None)


def _affinity_scores(
    fleet: Fleet, shortlist: ScoreCache, scores: Scores, ask: Ask, subjects: tuple[str, ...]
) -> Scores:
    preferences, weight = affinity_preferences(fleet, ask, shortlist.fits)
    allowed = affinity_mask(fleet, ask, subjects, shortlist.fits)
    if preferences is not None:
        blended = blend(scores.astype(np.int64), WEIGHT_FULL + shortlist.preference_weight, preferences, weight)
        scores = np.where(scores >= 0, blended, NOT_ELIGIBLE).astype(np.int32)
    return scores if allowed is None else np.where(allowed, scores, NOT_ELIGIBLE)


def affinity_mask(fleet: Fleet, ask: Ask, subjects: tuple[str, ...], fits: Mask) -> Mask | None:
    """Nodes that satisfy every affinity rule; None: there is no such rule."""
    return all_of([node_filter.mask(fleet, ask, subjects, fits) for node_filter in AFFINITY])
