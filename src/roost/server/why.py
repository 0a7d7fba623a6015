"""The answer to `why` as it looks from outside. Names here are stable; times are ms since 1970."""

import msgspec

from roost.core.advise import Advice
from roost.core.estimate import Estimate
from roost.core.explain import Why
from roost.core.suggest import Suggestion
from roost.server.views import Candidate, unit_name


class BlockerView(msgspec.Struct, frozen=True):
    """A reason with its code, and how many nodes it keeps out; 0: it is not about nodes."""

    filter: str
    reason: str
    nodes: int
    code: str


class SuggestionView(msgspec.Struct, frozen=True):
    """A change that would place the instance on `node` now: tried with the scheduler itself on a copy of the state.

    Kinds: less, rule, end, node, resume, quota. `path` is a field of the document. `amounts`, in base units, are what
    to ask for (less), what a node has to have (node) or what a quota has to be (quota). `instances` have to end (end).
    `facts` are what else the node has to be: pool, zone, labels.NAME.
    """

    kind: str
    words: str
    node: str
    path: str
    amounts: dict[str, int]
    instances: list[str]
    facts: dict[str, str]


class NeedView(msgspec.Struct, frozen=True):
    """One of the needs that no node meets together: the field of the document, and how many nodes meet it alone."""

    path: str
    words: str
    nodes: int


class EstimateView(msgspec.Struct, frozen=True):
    """When it may start, and from what that is known; or in words why it is not known."""

    words: str
    earliest_ms: int | None = None
    likely_ms: int | None = None
    latest_ms: int | None = None


class WhyView(msgspec.Struct, frozen=True, kw_only=True):
    """Why an instance is where it is: as data, and in words.

    For what waits: `verdict` is `wait` or `never`, `position` its place in the queue (1 is next), `ahead` the first of
    those before it.
    """

    instance: str
    state: str
    words: str
    code: str = ""
    blockers: list[BlockerView] = []
    node: str = ""
    strategy: str = ""
    eligible: int = 0
    considered: int = 0
    candidates: list[Candidate] = []
    verdict: str = ""
    suggestions: list[SuggestionView] = []
    contradiction: list[NeedView] = []
    position: int | None = None
    ahead: list[str] = []
    estimate: EstimateView | None = None


def why_view(why: Why, advice: Advice) -> WhyView:
    """The answer to `why`."""
    return WhyView(
        instance=why.instance,
        state=why.state,
        words=why.words,
        code=why.code,
        blockers=[BlockerView(each.filter, each.reason, each.nodes, each.code) for each in why.blockers],
        node=why.node,
        strategy=why.strategy,
        eligible=why.eligible,
        considered=why.considered,
        candidates=[Candidate(node, score) for node, score in why.candidates],
        verdict=advice.verdict,
        suggestions=[_suggestion(each) for each in advice.suggestions],
        contradiction=[NeedView(each.path, each.words, each.nodes) for each in advice.contradiction],
        position=advice.position or None,
        ahead=list(advice.ahead),
        estimate=_estimate(advice.estimate) if advice.estimate else None,
    )


def _suggestion(suggestion: Suggestion) -> SuggestionView:
    amounts = {unit_name(name): amount for name, amount in suggestion.amounts.items()}
    return SuggestionView(
        suggestion.kind,
        suggestion.words,
        suggestion.node,
        suggestion.path,
        amounts,
        list(suggestion.instances),
        suggestion.facts,
    )


def _estimate(estimate: Estimate) -> EstimateView:
    return EstimateView(estimate.words, estimate.earliest_ms, estimate.likely_ms, estimate.latest_ms)
