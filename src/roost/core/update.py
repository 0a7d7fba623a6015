"""Updates: a workload that lives gets a new version. What waits is of it at once; `reconcile` sees to what runs."""

import msgspec

from roost.core.adopt import complete
from roost.core.after import change_waits, waits_by_element
from roost.core.effects import Step
from roost.core.move import finish_if_over
from roost.core.rollout import begin
from roost.core.sameness import needs_restart
from roost.core.state import State, watch_queue
from roost.core.ticks import reschedule
from roost.core.versions import instances_of, make_instance, version_of, versions_of
from roost.model.errors import Conflict, NotFound
from roost.model.events import Rollback, Wanted
from roost.model.workload import Workload


def is_same(known: Workload, wanted: Wanted) -> bool:
    """Whether somebody wants what is there already. What failed on its way is not there: it is tried again."""
    if known.rollout is not None and known.rollout.state == "failed":
        return False
    return known.document == wanted.document and known.values == wanted.values


def change_refusal(state: State, known: Workload, wanted: Wanted) -> Conflict | None:
    """Why a workload cannot become what is wanted while it lives."""
    key, policy = known.key, wanted.policy
    if known.rest:
        return Conflict(f"{key} is being stopped; wait until it is over", code="name_in_use", path="name")
    if policy.kind != known.policy.kind:
        words = f"{key} is a {known.policy.kind}; cancel it first to make it a {policy.kind}"
        return Conflict(words, code="cannot_change", path="kind")
    if (policy.gang, policy.gang_size) != (known.policy.gang, known.policy.gang_size):
        return Conflict(f"{key} lives, and who is of its gang cannot change", code="cannot_change", path="gang")
    if bool(policy.schedule) != bool(known.policy.schedule):
        what = "runs by a schedule" if known.policy.schedule else "runs by itself"
        return Conflict(f"{key} {what}; cancel it first to change that", code="cannot_change", path="schedule")
    if policy.kind == "job" and wanted.count < state.begun(known):
        words = f"{state.begun(known):,} instances of {key} have begun; there cannot be fewer"
        return Conflict(words, code="cannot_change", path="count")
    if policy.kind == "job" and known.adopted and wanted.count != known.count:
        words = f"which instances of {key} have run is not known any more, so their number cannot change"
        return Conflict(words, code="cannot_change", path="count")
    by_element = waits_by_element(known) or any(each.each for each in policy.after)
    if by_element and (policy.after != known.policy.after or wanted.count != known.count):
        words = f"the elements of {key} wait for one each; cancel it first to change whom they wait for"
        return Conflict(words, code="cannot_change", path="after")
    if policy.gang and (wanted.count != known.count or needs_restart(known, _changed(known, wanted))):
        words = f"{key} is a gang, which starts together; cancel it first to start it as something else"
        return Conflict(words, code="cannot_change", path="gang")
    return None


def change(
    state: State, out: Step, known: Workload, wanted: Wanted, now: int, words: str = "applied", *, back: bool = False
) -> Workload:  # fmt: skip
    """Put what is wanted in the place of a workload that lives. `back`: it is one that was good."""
    if known.policy.kind == "service":
        _give_records(state, known, now)
    new = _changed(known, wanted)
    begin(state, known, new, words, now, back=back)
    change_waits(state, known, new)
    if new.policy.schedule:
        reschedule(state, new, now, known.policy.schedule)
    if new.policy.kind == "service":
        _fill_up(state, new, now)
    else:
        _take_up(state, new)
    if state.has_fresh(new):
        state.queue.add_fresh(new)
        if new.policy.when_full == "reject":
            state.rejectable.append(new.key)
    watch_queue(state, new)
    finish_if_over(state, new, now)  # of a job that is made smaller, nothing may be left to do
    return new


def rollback(state: State, out: Step, event: Rollback, now: int) -> None:
    """Back to an earlier version, which becomes a new one."""
    workload = state.workloads.get(event.workload)
    if workload is None:
        out.reply(event.request, NotFound(f"there is no workload {event.workload}"))
        return
    if workload.finished_ms:
        out.reply(event.request, Conflict(f"{event.workload} is over; apply it again to start it", code="is_over"))
        return
    known = [each for each in versions_of(state, workload) if each != workload.version]
    number = event.version or _before(state, workload, known)
    target = version_of(state, workload, number)
    if target is None or number == workload.version:
        told = f"those known are {', '.join(map(str, sorted(known)))}" if known else "it was never changed"
        words = f"{workload.key} has no version {event.version} to go back to; {told}"
        if not event.version:
            told = "it was never changed" if not known else "none that it had was another one, and good; name one"
            words = f"{workload.key} has no version to go back to: {told}"
        out.reply(event.request, NotFound(words, code="no_such_version"))
        return
    error = change_refusal(state, workload, _wanted(target))
    if error is not None:
        out.reply(event.request, error)
        return
    go_back(state, out, workload, target, f"rolled back to version {number}", now)
    out.reply(event.request, workload.key)


def go_back(state: State, out: Step, workload: Workload, target: Workload, words: str, now: int) -> Workload:
    """An earlier version as a new one: what still runs it stays."""
    return change(state, out, workload, _wanted(target), now, words, back=True)


def _before(state: State, workload: Workload, known: list[int]) -> int:
    """The version to which somebody goes back who names none: the last one that was good, and another one than now."""
    rollout = workload.rollout
    if rollout is not None and rollout.state != "done" and rollout.before:
        return rollout.before
    for number in known:
        other = version_of(state, workload, number)
        has_failed = other is not None and other.rollout is not None and other.rollout.state == "failed"
        if other is not None and not has_failed and not is_same(workload, _wanted(other)):
            return number
    return 0


def _wanted(version: Workload) -> Wanted:
    return Wanted(version.project, version.name, version.count, version.policy, version.document, version.values)


def _changed(known: Workload, wanted: Wanted) -> Workload:
    return msgspec.structs.replace(
        known, policy=wanted.policy, document=wanted.document, count=wanted.count, values=wanted.values
    )


def _give_records(state: State, known: Workload, now: int) -> None:
    """Replicas that never ran get records, so that they can be of the version before for a while."""
    if not known.waits:
        for index in range(state.begun(known), known.count):
            make_instance(state, known, index, "submitted", now)


def _fill_up(state: State, new: Workload, now: int) -> None:
    """More are wanted than before: indexes in between that have retired come back."""
    for instance in instances_of(state, new):
        if instance.index < new.count and instance.state == "stopping" and not instance.moving:
            instance.moving = True  # it was to retire
            state.touch_instance(instance)
    if new.adopted:  # who is missing may run on a node that has not spoken yet
        for index in range(state.begun(new), new.count):
            make_instance(state, new, index, "more are wanted", now)
        if state.now_ms >= state.settled_ms():
            complete(state, new)
        return
    for index in range(min(state.begun(new), new.count)):
        if f"{new.key}.{index}" not in state.instances:
            make_instance(state, new, index, "more are wanted", now)


def _take_up(state: State, new: Workload) -> None:
    """What waits is of the new version; what runs goes on as it is, and is of it when it is tried again."""
    for instance in instances_of(state, new):
        if instance.state == "queued":
            instance.version = new.version
            state.touch_instance(instance)
            if instance.ready_ms <= state.now_ms and not instance.waits:
                state.queue.add_again(new, instance.index)
