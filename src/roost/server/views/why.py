"""The answer to `why` as it looks from outside. Names here are stable; times are ms since 1970."""

from roost.core.explain.advice import Advice
from roost.core.explain.start_estimate import Estimate
from roost.core.explain.suggestions import Suggestion
from roost.core.explain.why import Why
from roost.schema.reason_text import Visible, is_visible, render_text
from roost.schema.why import BlockerView, EstimateView, NeedView, SuggestionView, WhyView
from roost.schema.work import CandidateView
from roost.server.views.work import unit_name


def why_view(why: Why, advice: Advice, visible: Visible | None = None) -> WhyView:
    """The answer to `why`."""
    return WhyView(
        instance=why.instance,
        state=why.state,
        message=render_text(why.text, visible),
        code=why.code,
        blockers=[
            BlockerView(blocker.filter, render_text(blocker.reason, visible), blocker.nodes, blocker.code)
            for blocker in why.blockers
        ],
        node=why.node,
        strategy=why.strategy,
        eligible=why.eligible,
        considered=why.considered,
        candidates=[CandidateView(node, score) for node, score in why.candidates],
        verdict=advice.verdict,
        suggestions=[_suggestion(suggestion, visible) for suggestion in advice.suggestions],
        contradiction=[NeedView(need.path, need.message, need.nodes) for need in advice.contradiction],
        position=advice.position or None,
        queued_before=[key for key in advice.queued_before if is_visible(key, visible)],
        estimate=_estimate(advice.estimate) if advice.estimate else None,
    )


def _suggestion(suggestion: Suggestion, visible: Visible | None) -> SuggestionView:
    amounts = {unit_name(name): amount for name, amount in suggestion.amounts.items()}
    return SuggestionView(
        suggestion.kind,
        render_text(suggestion.message, visible),
        suggestion.node,
        suggestion.path,
        amounts,
        [key for key in suggestion.instances if is_visible(key, visible)],
        suggestion.facts,
    )


def _estimate(estimate: Estimate) -> EstimateView:
    return EstimateView(estimate.message, estimate.earliest_ms, estimate.likely_ms, estimate.latest_ms)
