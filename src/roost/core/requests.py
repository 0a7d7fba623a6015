"""What people ask for: submit, cancel, retry. Documents were checked at the edge; here it is about the state."""

from roost.core.after import bad_conditions, bad_elements, begin_waiting, conditions_of, wait, waits_by_element
from roost.core.after_check import after_refusal
from roost.core.effects import Step
from roost.core.filters.resources import amount_words
from roost.core.gang import join_gang
from roost.core.move import finish_if_over, move, reopen, stop
from roost.core.near_cycle import at_odds, near_cycle
from roost.core.retry import may_still_run, requeue
from roost.core.state import State, watch_queue
from roost.core.strategies import check_strategy
from roost.core.sweep import forget
from roost.core.ticks import reschedule
from roost.core.update import change, change_refusal, is_same
from roost.model.errors import Conflict, Invalid, NotFound, RoostError
from roost.model.events import Cancel, Retry, Submit, Wanted
from roost.model.instance import Instance, Move
from roost.model.project import INSTANCES
from roost.model.states import FINISHED, HOLDING
from roost.model.units import show_duration
from roost.model.workload import Workload

WORKLOADS_MAX = 1_000_000  # known at once: half a gigabyte
REACH_MAX = 10_000  # how far ahead of an array's progress one index can be cancelled; each costs a record


def submit(state: State, out: Step, event: Submit, now: int) -> None:
    """Take in workloads, all or none. A finished one of the same name makes room; a live one is a conflict.

    Where only what lives is to be changed, a live one is none, and one that is finished or unknown is not found.
    """
    new: dict[str, Wanted] = {}
    for position, wanted in enumerate(event.wanted):
        key = f"{wanted.project}/{wanted.name}"
        known = state.workloads.get(key)
        alive = known if known is not None and not known.finished_ms else None
        same = alive is not None and (event.same_ok or event.must_exist) and is_same(alive, wanted)
        error = None if same else _refusal(state, event, wanted, alive, key in new, now)
        if error is not None:
            if len(event.wanted) > 1:
                error.path = f"[{position}].{error.path}"
            out.reply(event.request, error)
            return
        if not same:
            new[key] = wanted
    if len(state.workloads) + len(new) > WORKLOADS_MAX:
        out.reply(event.request, Conflict(f"there are {len(state.workloads):,} workloads already", code="too_many"))
        return
    error = _never_together(state, event, new) or _never_after(state, event, new)
    if error is not None:
        out.reply(event.request, error)
        return
    for key, wanted in new.items():
        _take_in(state, out, key, wanted, now)
    out.reply(event.request, tuple(f"{wanted.project}/{wanted.name}" for wanted in event.wanted))


def _never_together(state: State, event: Submit, new: dict[str, Wanted]) -> Invalid | None:
    """Workloads whose rules about each other keep them from ever starting."""
    keys = [f"{wanted.project}/{wanted.name}" for wanted in event.wanted]
    chain = near_cycle(state.workloads, new, state.fleet.crowd.members)
    if chain:
        words, code = f"each waits for the next to run: {' near '.join(chain)}; let one start anywhere", "near_cycle"
    else:
        odds = at_odds(state.workloads, new)
        if odds is None:
            return None
        chain, code = list(odds), "contradiction"
        words = f"of {odds[0]} and {odds[1]} one must be near the other, and that one apart from it"
    path = f"[{keys.index(chain[0])}]." if len(keys) > 1 else ""
    return Invalid(f"{path}placement", words, code=code)


def _never_after(state: State, event: Submit, new: dict[str, Wanted]) -> RoostError | None:
    """Workloads that want to wait for what cannot come."""
    found = after_refusal(state, new)
    if found is None:
        return None
    key, error = found
    if len(event.wanted) > 1:
        position = [f"{wanted.project}/{wanted.name}" for wanted in event.wanted].index(key)
        error.path = f"[{position}].{error.path}"
    return error


def _refusal(
    state: State, event: Submit, wanted: Wanted, alive: Workload | None, twice: bool, now: int
) -> RoostError | None:
    key = f"{wanted.project}/{wanted.name}"
    if twice:
        return Conflict(f"{key} is in the same request twice", code="name_in_use", path="name")
    if alive is None and event.must_exist:
        words = f"{key} is over: submit it again" if key in state.workloads else f"there is no workload {key}"
        return NotFound(words, path="name")
    if alive is not None and (event.same_ok or event.must_exist):
        error = change_refusal(state, alive, wanted)
        if error is not None:
            return error
    elif alive is not None:
        since = show_duration(now - alive.submitted_ms)
        words = f"{key} is in use since {since}; cancel it first or take another name"
        return Conflict(words, code="name_in_use", path="name")
    try:
        check_strategy(wanted.policy.ask.strategy, "placement.strategy")
    except Invalid as error:
        return error
    return _over_quota(state, wanted)


def _over_quota(state: State, wanted: Wanted) -> RoostError | None:
    """What has to run all at once and never can within the quota is refused whole; a job may wait for its turn."""
    project, policy = state.projects.get(wanted.project), wanted.policy
    if project is None or project.counted or project.borrow:
        return None
    together = wanted.count if policy.kind != "job" or policy.gang else 1
    needed = {name: amount * together for name, amount in policy.ask.resources} | {INSTANCES: together}
    for name, most in project.quota.items():
        if needed.get(name, 0) > most:
            words = f"{amount_words(name, needed[name])} are asked for at once, the quota of project {project.name} is "
            return Conflict(words + amount_words(name, most), code="quota_exceeded", path="count")
    return None


def _take_in(state: State, out: Step, key: str, wanted: Wanted, now: int) -> None:
    known = state.workloads.get(key)
    if known is not None and not known.finished_ms:
        change(state, out, known, wanted, now)
        return
    if known is not None:
        forget(state, out, known)
    policy = state.shared(wanted.policy)
    workload = Workload(
        wanted.project, wanted.name, policy, wanted.document, now, state.next_serial(), wanted.count,
        values=wanted.values,
    )  # fmt: skip
    state.workloads[key] = workload
    join_gang(state, workload)
    state.touch_workload(workload)
    watch_queue(state, workload)
    if policy.schedule:
        reschedule(state, workload, now)
    elif policy.after:
        begin_waiting(state, workload)
        if waits_by_element(workload):
            materialise(state, workload, workload.count)
    else:
        state.queue.add_fresh(workload)
        if policy.when_full == "reject":
            state.rejectable.append(key)


def cancel(state: State, out: Step, event: Cancel, now: int) -> None:
    """Stop a workload or one of its instances. What is over already stays as it is: cancelling twice is fine."""
    workload = _known(state, out, event)
    if workload is None:
        return
    if event.index is None or workload.count == 1:
        cancel_all(state, out, workload, event.cause, now)
    elif workload.policy.schedule:
        words = f"{workload.key} runs by a schedule and has no instances itself; cancel all of it, or one of its runs"
        out.reply(event.request, Conflict(words, path="index"))
        return
    else:
        if event.index >= state.begun(workload) and not workload.rest:
            if event.index - state.begun(workload) > REACH_MAX:
                words = f"index {event.index} is too far from its turn; cancel the whole workload"
                out.reply(event.request, Conflict(words, path="index"))
                return
            materialise(state, workload, event.index + 1)
        instance = state.instances.get(f"{workload.key}.{event.index}")
        if instance is not None:
            cancel_one(state, out, instance, event.cause, now)
    out.reply(event.request, workload.key)


def cancel_all(state: State, out: Step, workload: Workload, cause: str, now: int) -> None:
    """Stop all of a workload that lives, and start nothing of it any more."""
    cancel_rest(state, workload, cause, now)
    for index in range(state.begun(workload)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None:
            cancel_one(state, out, instance, cause, now)
    finish_if_over(state, workload, now)


def retry(state: State, out: Step, event: Retry, now: int) -> None:
    """Run again what ended otherwise than well; one that is named is run again however it ended."""
    workload = _known(state, out, event)
    if workload is None:
        return
    chosen = [
        instance
        for index in (range(state.begun(workload)) if event.index is None else (event.index,))
        if (instance := state.instances.get(f"{workload.key}.{index}")) is not None
        and instance.state in FINISHED
        and (event.index is not None or instance.state != "succeeded")
        and (not event.failed or instance.state in ("failed", "timed_out"))
    ]
    fresh = bool(workload.rest) and state.begun(workload) < workload.count and event.index is None and not event.failed
    words = _never_released(state, workload, chosen, fresh=fresh)
    if words:
        out.reply(event.request, Conflict(f"{words}; retry that first", code="after_failed"))
        return
    if not chosen and not fresh:
        words = f"nothing of {workload.key} has failed; name an instance ({workload.name}.0) to run it again anyway"
        out.reply(event.request, Conflict(words, code="nothing_to_retry"))
        return
    for instance in chosen:
        if may_still_run(state, instance):
            words = f"{instance.key} may still be running on {instance.node}, which has not confirmed its end"
            out.reply(event.request, Conflict(words, code="may_still_run"))
            return
    _wait_again(state, workload, chosen)
    _reopen(state, workload, fresh=fresh, now=now)
    for instance in chosen:
        instance.losses = instance.failures = 0
        requeue(state, out, instance, "retry asked for", now)
    out.reply(event.request, workload.key)


def _never_released(state: State, workload: Workload, chosen: list[Instance], *, fresh: bool) -> str:
    """Why nothing of what is to be tried again could start, in words. Elements that could not are left out."""
    stuck = [each for each in chosen if each.waits]
    if not workload.policy.after or not (fresh or stuck):
        return ""
    words = bad_conditions(state, workload) if not workload.released_ms else ""
    if words:
        return words
    hopeless = {each.index: words for each in stuck if (words := bad_elements(state, workload, each.index))}
    chosen[:] = [each for each in chosen if each.index not in hopeless]
    return next(iter(hopeless.values()), "") if not chosen and not fresh else ""


def _wait_again(state: State, workload: Workload, chosen: list[Instance]) -> None:
    """What was never released waits once more: what it waits for may live again. What ran before does not."""
    stuck = [each for each in chosen if each.waits]
    known = {each.workload for each in workload.waits}
    again = tuple(
        each
        for each in conditions_of(state, workload)
        if each.workload not in known and (stuck if each.each else not workload.released_ms)
    )
    if again:
        wait(state, workload, workload.waits + again)
    for instance in stuck if not workload.waits else ():
        instance.waits = False


def materialise(state: State, workload: Workload, until: int) -> None:
    """Give records to instances below an index that have none yet, so that they can differ from each other."""
    progress = state.progress_of(workload)
    for index in range(progress.begun, until):
        story = (Move(workload.submitted_ms, "queued", "submitted", state.revision + 1),)
        instance = Instance(workload.key, index, since_ms=workload.submitted_ms, story=story, version=workload.version)
        if workload.waits:
            instance.waits, instance.cause = True, "waits for what comes before it"
        state.instances[instance.key] = instance
        progress.counts["queued"] = progress.counts.get("queued", 0) + 1
        state.touch_instance(instance)
        if not instance.waits:
            state.queue.add_again(workload, index)
    progress.begun = max(progress.begun, until)


def cancel_rest(state: State, workload: Workload, cause: str, now: int) -> None:
    if not workload.rest and not workload.finished_ms:
        workload.rest, workload.cause = "cancelled", cause
        state.touch_workload(workload)


def cancel_one(state: State, out: Step, instance: Instance, cause: str, now: int) -> None:
    if instance.state == "queued":
        move(state, out, instance, "cancelled", cause, now)
    if instance.state not in HOLDING:
        return
    if instance.state != "stopping":
        stop(state, out, instance, cause, now)
    elif instance.moving:
        instance.moving, instance.cause = False, cause  # it was to move; now it is not to come back
        state.touch_instance(instance)
    if state.nodes[instance.node].status == "lost":
        move(state, out, instance, "cancelled", cause, now)  # it was kept there, and nobody is there to confirm


def _reopen(state: State, workload: Workload, *, fresh: bool, now: int) -> None:
    reopen(state, workload)
    if fresh and workload.policy.schedule:
        reschedule(state, workload, now)
    elif fresh and not workload.waits:
        state.queue.add_fresh(workload)
        if workload.policy.when_full == "reject":
            state.rejectable.append(workload.key)
    if fresh or state.begun(workload) >= workload.count:
        workload.rest = workload.cause = ""
    workload.submitted_ms = now  # limits on waiting count from here
    watch_queue(state, workload)
    state.touch_workload(workload)


def _known(state: State, out: Step, event: Cancel | Retry) -> Workload | None:
    workload = state.workloads.get(event.workload)
    if workload is None:
        out.reply(event.request, NotFound(f"there is no workload {event.workload}"))
        return None
    if event.index is not None and not 0 <= event.index < workload.count:
        words = f"{event.workload} has instances 0 to {workload.count - 1}, not {event.index}"
        out.reply(event.request, NotFound(words))
        return None
    return workload
