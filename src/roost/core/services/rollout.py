"""Rollouts: the progress of a new version, its canaries, when it has failed, and when it rolls back."""

import msgspec

from roost.core.state.outcome import Step
from roost.core.state.queue import FOREVER
from roost.core.state.state import State
from roost.core.state.versions import instances_of, version_of
from roost.model.errors import Conflict
from roost.model.events import Promote
from roost.model.reasons import reason as reasons
from roost.model.reasons.reason import Reason
from roost.model.records.workload import DEFAULT_UPDATE, Rollout, Update, Workload
from roost.model.states import RolloutState


def cap_of(workload: Workload) -> int:
    """Instances below this index are to be of the present version."""
    rollout, update = workload.rollout, workload.policy.update or DEFAULT_UPDATE
    if rollout is None:
        return workload.count
    if rollout.state == RolloutState.FAILED:
        return 0
    is_capped = update.canary and rollout.before and not rollout.promoted
    return min(update.canary, workload.count) if is_capped else workload.count


def advance(state: State, workload: Workload, done: int, now: int) -> tuple[Workload, Reason] | None:
    """Record the progress of a rollout; if it failed and rolls back, return the version and the reason."""
    rollout, update = workload.rollout, workload.policy.update or DEFAULT_UPDATE
    if rollout is not None and rollout.state == RolloutState.FAILED and done >= workload.count:
        _now(state, workload, state=RolloutState.DONE, done=done, progress_ms=now)  # all of it came through after all
    if rollout is None or not rollout.is_going:
        return None
    if done > rollout.done:
        rollout = _now(state, workload, done=done, progress_ms=now)
    elif done < rollout.done:
        rollout = _now(state, workload, done=done)
    reason = _failure(state, workload, rollout, update, now)
    if reason is not None:
        return _fail(state, workload, rollout, update, reason)
    cap = cap_of(workload)
    if done >= workload.count:
        _now(state, workload, state=RolloutState.DONE, progress_ms=now)
    elif cap < workload.count and done >= cap:
        _now(state, workload, state=RolloutState.WAITING)
    elif rollout.state == RolloutState.WAITING:  # a canary is away; what was fine may fail yet
        _now(state, workload, state=RolloutState.ROLLING, progress_ms=now)
    return None


def progress_deadline_ms(state: State, workload: Workload, rollout: Rollout, update: Update) -> int:
    """When a rollout without progress has failed. Time during maintenance or without a leader does not count, nor does
    the time that the first version is pending."""
    since_ms = max(rollout.progress_ms, state.active_since_ms)
    if workload.version == 1:
        started = [instance.started_ms for instance in instances_of(state, workload) if instance.started_ms]
        since_ms = max(since_ms, min(started, default=FOREVER))
    return since_ms + update.deadline_ms


def promote(state: State, out: Step, event: Promote, now: int) -> None:
    workload = state.known_workload(event.workload)
    rollout = workload.rollout
    if rollout is None or not rollout.is_going or rollout.promoted or cap_of(workload) >= workload.count:
        message = f"{workload.key} has no canaries that wait to be promoted"
        raise Conflict(message, code="nothing_to_promote")
    if rollout.state != RolloutState.WAITING:
        message = f"{rollout.done} of {cap_of(workload)} canaries of {workload.key} are available; wait for the rest"
        raise Conflict(message, code="canaries_not_ready")
    _now(state, workload, state=RolloutState.ROLLING, promoted=True, progress_ms=now)
    state.mark_dirty(workload.key)
    out.reply(event.request, workload.key)


def _fail(
    state: State, workload: Workload, rollout: Rollout, update: Update, reason: Reason
) -> tuple[Workload, Reason] | None:
    target = version_of(state, workload, rollout.before) if rollout.before and update.rollback else None
    _now(state, workload, state=RolloutState.FAILED, reason=reason)
    return (target, reasons.RolledBack(target.version, cause=reason)) if target is not None else None


def _failure(state: State, workload: Workload, rollout: Rollout, update: Update, now: int) -> Reason | None:
    if rollout.failures >= update.failures:
        return reasons.RolloutFailures(workload.version, rollout.failures, _last_ending(state, workload))
    if rollout.state == RolloutState.ROLLING and now >= progress_deadline_ms(state, workload, rollout, update):
        own = [instance for instance in instances_of(state, workload) if instance.version == workload.version]
        health = next((instance.health_failure for instance in own if instance.health_failure is not None), None)
        return reasons.RolloutStalled(workload.version, update.deadline_ms, health, _last_ending(state, workload))
    return None


def _last_ending(state: State, workload: Workload) -> Reason | None:
    own = [instance for instance in instances_of(state, workload) if instance.version == workload.version]
    last = max((item for item in own if item.failures), key=lambda item: item.since_ms, default=None)
    return _ending(last.reason) if last is not None else None


def _ending(reason: Reason | None) -> Reason | None:
    """How an attempt ended, without the retry or restart that followed."""
    again = (reasons.AttemptRetried, reasons.RestartDisabled, reasons.ServiceRestarted)
    return reason.cause if isinstance(reason, again) else reason


def _now(state: State, workload: Workload, /, **fields: object) -> Rollout:
    assert workload.rollout is not None
    workload.rollout = msgspec.structs.replace(workload.rollout, **fields)
    state.touch_workload(workload)
    return workload.rollout
