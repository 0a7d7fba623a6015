"""Rollouts: how far a new version has come, when it waits for somebody's word, when it failed and goes back."""

import msgspec

from roost.core.effects import Step
from roost.core.state import State
from roost.core.versions import instances_of, keep_version, version_of
from roost.model.errors import Conflict, NotFound
from roost.model.events import Promote
from roost.model.instance import Instance
from roost.model.units import show_duration
from roost.model.workload import DEFAULT_UPDATE, Rollout, Update, Workload

GOING = ("rolling", "waiting")


def begin(state: State, old: Workload, new: Workload, change: str, now: int, *, back: bool = False) -> None:
    """Put a new version in the place of the present one. `back`: it is one that was good, and there is no way back."""
    keep_version(state, old)
    before = 0 if back else _good(old)
    new.version, new.changed_ms, new.change = old.version + 1, now, change
    new.rollout = Rollout("rolling", before, now, now) if new.policy.kind == "service" else None
    new.policy = state.shared(new.policy)
    state.workloads[new.key] = new
    state.touch_workload(new)
    if new.policy.kind == "service":
        state.rouse(new.key)


def cap_of(workload: Workload) -> int:
    """Instances below this index are to be of the present version."""
    rollout, update = workload.rollout, workload.policy.update or DEFAULT_UPDATE
    if rollout is None:
        return workload.count
    if rollout.state == "failed":
        return 0
    is_capped = update.canary and rollout.before and not rollout.promoted
    return min(update.canary, workload.count) if is_capped else workload.count


def advance(state: State, workload: Workload, done: int, now: int) -> tuple[Workload, str] | None:
    """Note how far a rollout has come; if it failed and is to go back, to which version, and why."""
    rollout, update = workload.rollout, workload.policy.update or DEFAULT_UPDATE
    if rollout is not None and rollout.state == "failed" and done >= workload.count:
        _now(state, workload, state="done", done=done, progress_ms=now)  # all of it came through after all
    if rollout is None or rollout.state not in GOING:
        return None
    if done > rollout.done:
        rollout = _now(state, workload, done=done, progress_ms=now)
    elif done < rollout.done:
        rollout = _now(state, workload, done=done)
    words = _failure(state, workload, rollout, update, now)
    if words:
        return _fail(state, workload, rollout, update, words)
    cap = cap_of(workload)
    if done >= workload.count:
        _now(state, workload, state="done", progress_ms=now)
    elif cap < workload.count and done >= cap:
        _now(state, workload, state="waiting")
    elif rollout.state == "waiting":  # a canary is away; what was fine may fail yet
        _now(state, workload, state="rolling", progress_ms=now)
    return None


def give_up_ms(state: State, rollout: Rollout, update: Update) -> int:
    """When a rollout that gets no further has failed. Time in which nothing could happen does not count."""
    return max(rollout.progress_ms, state.moving_ms) + update.deadline_ms


def failed_once(state: State, instance: Instance) -> None:
    """An instance of a service ended by itself: if it is of a version that is being rolled out, that counts."""
    workload = state.workloads[instance.workload]
    rollout = workload.rollout
    if rollout is not None and rollout.state in GOING and instance.version == workload.version:
        _now(state, workload, failures=rollout.failures + 1)
        state.rouse(workload.key)


def promote(state: State, out: Step, event: Promote, now: int) -> None:
    """The canaries are good: all others follow."""
    workload = state.workloads.get(event.workload)
    if workload is None:
        out.reply(event.request, NotFound(f"there is no workload {event.workload}"))
        return
    rollout = workload.rollout
    if rollout is None or rollout.state not in GOING or rollout.promoted or cap_of(workload) >= workload.count:
        words = f"{workload.key} has no canaries that wait to be promoted"
        out.reply(event.request, Conflict(words, code="nothing_to_promote"))
        return
    if rollout.state != "waiting":
        words = f"{rollout.done} of {cap_of(workload)} canaries of {workload.key} are available; wait for the rest"
        out.reply(event.request, Conflict(words, code="canaries_not_ready"))
        return
    _now(state, workload, state="rolling", promoted=True, progress_ms=now)
    state.rouse(workload.key)
    out.reply(event.request, workload.key)


def _fail(
    state: State, workload: Workload, rollout: Rollout, update: Update, words: str
) -> tuple[Workload, str] | None:
    target = version_of(state, workload, rollout.before) if rollout.before and update.rollback else None
    _now(state, workload, state="failed", cause=words)
    return (target, f"rolled back to version {target.version}: {words}") if target is not None else None


def _failure(state: State, workload: Workload, rollout: Rollout, update: Update, now: int) -> str:
    """Why a rollout has failed, in words; empty: it has not."""
    if rollout.failures >= update.failures:
        last = max(
            (each for each in instances_of(state, workload) if each.version == workload.version and each.failures),
            key=lambda each: each.since_ms,
            default=None,
        )
        told = f", the last: {last.cause.partition(';')[0]}" if last is not None else ""
        return f"version {workload.version} failed: its instances ended {rollout.failures} times{told}"
    if rollout.state == "rolling" and now >= give_up_ms(state, rollout, update):
        limit = show_duration(update.deadline_ms)
        return f"version {workload.version} failed: no instance became available for {limit}"
    return ""


def _good(workload: Workload) -> int:
    """The version to go back to if the next one fails: this one, unless it is not known to be good itself."""
    rollout = workload.rollout
    return workload.version if rollout is None or rollout.state == "done" or not rollout.before else rollout.before


def _now(state: State, workload: Workload, /, **fields: object) -> Rollout:
    assert workload.rollout is not None
    workload.rollout = msgspec.structs.replace(workload.rollout, **fields)
    state.touch_workload(workload)
    return workload.rollout
