"""Plans as they look from outside."""

from roost.model.records.plan import Pending, Plan
from roost.schema.plans import PendingView, PlacingView, PlanBlockerView, PlanView, StoppingView
from roost.schema.reason_text import message_of, render_text
from roost.server.auth.principal import Redactor


def plan_view(made: Plan, token: str, revision: int, redactor: Redactor) -> PlanView:
    """A plan, without the names of what the reader may not see."""
    placed = [
        PlacingView(placing.instance, placing.node, placing.strategy, list(placing.devices), list(placing.ports))
        for placing in made.placed
    ]
    stopped = [
        StoppingView(redactor.key(stopping.instance), stopping.node, message_of(stopping.reason, redactor.visible))
        for stopping in made.stopped
    ]
    pending = [_pending(pending_workload, redactor) for pending_workload in made.pending]
    created, changed = list(made.created), list(made.changed)
    will_change = bool(created or changed)
    return PlanView(token, revision, will_change, created, changed, list(made.unchanged), placed, pending, stopped)


def _pending(pending: Pending, redactor: Redactor) -> PendingView:
    blockers = [
        PlanBlockerView(reason.code, render_text(reason.text, redactor.visible), reason.nodes)
        for reason in pending.blockers
    ]
    return PendingView(
        pending.workload, pending.count, pending.code, render_text(pending.text, redactor.visible), blockers
    )
