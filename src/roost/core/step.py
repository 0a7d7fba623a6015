"""step(state, events, now): the whole of Roost's deciding. Pure: the same input gives the same output, always.

One pass, in order: what happened (events), what is due (expire), who goes where (place), what can go (sweep).
The state is changed in place; a caller that cannot make the changes durable throws the state away and loads it again.
"""

from collections.abc import Callable, Sequence
from typing import Any

from roost.core import (
    agents,
    audit,
    cron,
    drain,
    keep,
    maintain,
    operate,
    pools,
    posted,
    requests,
    rollout,
    settings,
    update,
)
from roost.core.after import settle_waits
from roost.core.assign import hand_out
from roost.core.effects import Step
from roost.core.expire import expire
from roost.core.operate import frozen
from roost.core.place import place, reject_waiting
from roost.core.plan import PASSES_MAX, refusal
from roost.core.reconcile import reconcile
from roost.core.state import State
from roost.core.sweep import sweep
from roost.model import events as happened
from roost.model.errors import Conflict, RoostError


def _submit(state: State, out: Step, event: happened.Submit, now: int) -> None:
    """Take in workloads. What was planned is checked on a copy and placed at once: exactly that happens, or nothing."""
    if event.expected is None:
        requests.submit(state, out, event, now)
        return
    expire(state, out, now)
    settle_waits(state, out, now)
    if _place_all(state, out, now):
        words = "more waits to be placed than one step may do; try again in a moment"
        out.reply(event.request, Conflict(words, code="plan_stale"))
        return
    error = refusal(step, state, event, now)
    if error is not None:
        out.reply(event.request, error)
        return
    requests.submit(state, out, event, now)
    settle_waits(state, out, now)
    if not _place_all(state, out, now):
        reject_waiting(state, out, now)


def _asked(state: State, out: Step, event: happened.Asked, now: int) -> None:
    """Carry out a request, and note who asked for it."""
    before = len(out.replies)
    HANDLERS[type(event.event)](state, out, event.event, now)
    if not any(isinstance(reply.value, RoostError) for reply in out.replies[before:]):
        audit.note(state, event.by, event.event, now)


def _place_all(state: State, out: Step, now: int) -> bool:
    """As many passes as a plan may take. True: they were not enough."""
    return all(place(state, out, now) for _ in range(PASSES_MAX))


HANDLERS: dict[type, Callable[[State, Step, Any, int], None]] = {
    happened.Submit: _submit,
    happened.Cancel: requests.cancel,
    happened.Retry: requests.retry,
    happened.Posted: posted.posted,
    happened.RunNow: cron.run_now,
    happened.Promote: rollout.promote,
    happened.Rollback: update.rollback,
    happened.Drain: drain.drain,
    happened.Cordon: operate.cordon,
    happened.Maintain: maintain.maintain,
    happened.Resume: drain.resume,
    happened.Remove: drain.remove,
    happened.SetProject: settings.set_project,
    happened.SetPool: pools.set_pool,
    happened.MarkPool: pools.mark_pool,
    happened.Reserve: settings.reserve,
    happened.Unset: settings.unset,
    happened.Keep: keep.keep,
    happened.Asked: _asked,
    happened.Joined: agents.joined,
    happened.Reported: agents.reported,
    happened.Parted: agents.parted,
    happened.Heard: agents.heard,
}


def step(state: State, events: Sequence[happened.Event], now: int) -> Step:
    """Let events happen at a time; say what changed and what is to be done about it."""
    out = Step()
    state.now_ms = now = max(now, state.now_ms)
    for event in events:
        HANDLERS[type(event)](state, out, event, now)
    expire(state, out, now)
    reconcile(state, out, now)
    settle_waits(state, out, now)
    more = place(state, out, now)
    if not more:
        reject_waiting(state, out, now)
    sweep(state, out)
    hand_out(state, out)
    out.changes = state.flush()
    if out.changes:
        state.revision += 1
    more = more or bool(state.news) or (bool(state.unsettled) and not frozen(state))
    out.wake_at_ms = now if more else state.timers[0][0] if state.timers else None
    return out
