"""Answers to `why` and plans as they look from outside. Names here are stable; times are ms since 1970."""

import msgspec

from roost.core.explain.advice import Advice
from roost.core.explain.suggestions import Suggestion
from roost.core.explain.why import Why
from roost.model.reasons.reason import Reason
from roost.model.records.plan import Pending, Plan
from roost.schema.plans import PendingView, PlacingView, PlanBlockerView, PlanView, StoppingView
from roost.schema.reason_text import ReasonView, Visible, is_visible, message_of, render, render_text
from roost.schema.why import BlockerView, EstimateView, NeedView, NoteView, SuggestionView, WhyView
from roost.schema.work import CandidateView
from roost.server.auth.principal import Redactor
from roost.server.views.view_of import view_of
from roost.server.views.work import unit_name


def why_view(why: Why, advice: Advice, visible: Visible | None = None) -> WhyView:
    """Why an instance is placed or pending, without the names of what the reader may not see."""
    return view_of(
        WhyView,
        why,
        advice,
        message=render_text(why.text, visible),
        blockers=[
            view_of(BlockerView, blocker, reason=render_text(blocker.reason, visible)) for blocker in why.blockers
        ],
        candidates=[CandidateView(node, score) for node, score in why.candidates],
        suggestions=[_suggestion(suggestion, visible) for suggestion in advice.suggestions],
        contradiction=[view_of(NeedView, need) for need in advice.contradiction],
        position=advice.position or None,
        queued_before=[key for key in advice.queued_before if is_visible(key, visible)],
        notes=[_note(why.instance.rpartition(".")[0] or why.instance, note, visible) for note in advice.notes],
        estimate=EstimateView(*msgspec.structs.astuple(advice.estimate)) if advice.estimate else None,
    )


def _suggestion(suggestion: Suggestion, visible: Visible | None) -> SuggestionView:
    return view_of(
        SuggestionView,
        suggestion,
        message=render_text(suggestion.message, visible),
        amounts={unit_name(name): amount for name, amount in suggestion.amounts.items()},
        instances=[key for key in suggestion.instances if is_visible(key, visible)],
    )


def plan_view(made: Plan, token: str, revision: int, redactor: Redactor) -> PlanView:
    """A plan, without the names of what the reader may not see."""
    stopped = [
        StoppingView(redactor.key(stopping.instance), stopping.node, message_of(stopping.reason, redactor.visible))
        for stopping in made.stopped
    ]
    return view_of(
        PlanView,
        made,
        token=token,
        revision=revision,
        changes=bool(made.created or made.changed),
        placed=[view_of(PlacingView, placing) for placing in made.placed],
        pending=[_pending(pending, redactor.visible) for pending in made.pending],
        stopped=stopped,
        notes=[_note(workload, note, redactor.visible) for workload, note in made.notes],
    )


def _note(workload: str, note: Reason, visible: Visible | None) -> NoteView:
    return NoteView(workload, render(note, visible), ReasonView(note.code, msgspec.structs.asdict(note)))


def _pending(pending: Pending, visible: Visible | None) -> PendingView:
    blockers = [
        view_of(PlanBlockerView, blocker, message=render_text(blocker.text, visible)) for blocker in pending.blockers
    ]
    return view_of(PendingView, pending, message=render_text(pending.text, visible), blockers=blockers)
