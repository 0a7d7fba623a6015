"""Who waits for whom: released when what it waits for has come, cancelled when that can never come any more.

`Workload.waits` are the conditions that do not hold yet. One on all of a workload leaves it as soon as it holds; one
that goes element by element stays until the other workload is over, and each instance says for itself whether it waits.
Nothing is decided where it happens: whatever moves leaves a note in `state.news`, and `settle_waits` goes through them.
"""

from roost.core.effects import Step
from roost.core.move import finish_if_over, move, tell
from roost.core.state import ALL, State, watch_queue
from roost.core.verdict import judge, judge_element, never_words
from roost.model.instance import Instance
from roost.model.workload import After, Workload

DECISIONS_MAX = 2_000  # in one step, as many as placements: a commit stays below a megabyte
DEFAULT_WHEN = {"job": "succeeded", "service": "started", "vm": "started"}


def settle_waits(state: State, out: Step, now: int) -> None:
    """Decide for whom something has come. What is too much for one step stays in the news for the next."""
    left = DECISIONS_MAX
    while state.news and left > 0:
        key = next(iter(state.news))
        indexes = state.news.pop(key)
        for dependant in list(state.dependants.get(key, ())):
            left -= _decide(state, out, dependant, key, indexes, now)
            if left <= 0:
                state.news.setdefault(key, {}).update(indexes)
                break


def settle_forgotten(state: State, out: Step, workload: Workload, now: int) -> None:
    """A workload that is over is about to be forgotten: whoever still waits for it is decided at once."""
    for dependant in list(state.dependants.get(workload.key, ())):
        _decide(state, out, dependant, workload.key, {ALL: None}, now)
    state.news.pop(workload.key, None)


def begin_waiting(state: State, workload: Workload) -> None:
    """A workload was taken in, or is to wait once more: for all that it names, until the next look says otherwise."""
    wait(state, workload, conditions_of(state, workload))


def wait(state: State, workload: Workload, conditions: tuple[After, ...]) -> None:
    """Let a workload wait for these; those that hold already are found out in the same step."""
    state.wait_for(workload, conditions)
    state.touch_workload(workload)
    for each in conditions:
        state.tell_dependants(each.workload)


def conditions_of(state: State, workload: Workload) -> tuple[After, ...]:
    """What a workload names, each with the `when` that is meant: what is left out depends on the other's kind."""
    return tuple(
        After(each.workload, each.when or DEFAULT_WHEN[_kind_of(state, each.workload)], each.each)
        for each in workload.policy.after
    )


def change_waits(state: State, known: Workload, new: Workload) -> None:
    """A workload that waits has become another version: what it names no more is left out, what is new comes in."""
    before = {each.workload for each in known.policy.after}
    kept = {each.workload: each for each in known.waits}
    found = []
    for each in conditions_of(state, new) if known.waits else ():
        if each.workload not in before or each.workload in kept:
            found.append(each)
    found += [each for each in known.waits if each.workload not in before]  # a run of a schedule waits for others
    new.waits = known.waits
    wait(state, new, tuple(found))
    if known.waits and not found:
        _release(state, new, state.now_ms)


def waits_by_element(workload: Workload) -> bool:
    """Whether its elements wait for an element each."""
    return any(each.each for each in workload.policy.after)


def bad_elements(state: State, workload: Workload, index: int) -> str:
    """Why an element that never got to run cannot even be tried again, in words; empty: it can wait."""
    for each in conditions_of(state, workload):
        if each.each:
            verdict = judge_element(state, each, index)
            if verdict.never:
                return never_words(f"{each.workload}.{index}", verdict.never)
    return ""


def bad_conditions(state: State, workload: Workload) -> str:
    """Why a workload that was never released cannot be either, in words; empty: it can wait."""
    for each in conditions_of(state, workload):
        verdict = judge(state, each)
        if not each.each and verdict.never:
            return never_words(each.workload, verdict.never)
    return ""


def _kind_of(state: State, key: str) -> str:
    other = state.workloads.get(key)
    return other.policy.kind if other is not None else "job"


def _decide(state: State, out: Step, dependant: str, key: str, indexes: dict[int, None], now: int) -> int:
    """Look at one condition of one workload. How much was decided."""
    workload = state.workloads[dependant]
    condition = next(each for each in workload.waits if each.workload == key)
    if condition.each:
        return _decide_elements(state, out, workload, condition, indexes, now)
    verdict = judge(state, condition, indexes)
    if verdict.holds:
        _done(state, workload, condition)
        return 1 + _release_if_free(state, out, workload, now)
    if verdict.never:
        return cancel_waiting(state, out, workload, never_words(key, verdict.never), now)
    return 0


def _decide_elements(
    state: State, out: Step, workload: Workload, condition: After, indexes: dict[int, None], now: int
) -> int:
    decided = 0
    for index in range(workload.count) if ALL in indexes else list(indexes):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.waits and instance.state == "queued":
            decided += _try_element(state, out, workload, instance, now)
    other = state.workloads.get(condition.workload)
    if condition in workload.waits and (other is None or other.finished_ms):  # all its elements are decided
        _done(state, workload, condition)
        decided += 1
    return decided


def _release_if_free(state: State, out: Step, workload: Workload, now: int) -> int:
    """Nothing that is about all of it is left to wait for: each of its elements may go, or has its own to wait for."""
    if any(not each.each for each in workload.waits):
        return 0
    decided = 0
    for index in range(state.begun(workload)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.waits and instance.state == "queued":
            decided += _try_element(state, out, workload, instance, now)
    _release(state, workload, now)
    return decided


def _release(state: State, workload: Workload, now: int) -> None:
    """From now on it waits for nothing but room."""
    workload.released_ms = now
    state.touch_workload(workload)
    if state.has_fresh(workload):
        state.queue.add_fresh(workload)
        if workload.policy.when_full == "reject":
            state.rejectable.append(workload.key)
    watch_queue(state, workload)


def _try_element(state: State, out: Step, workload: Workload, instance: Instance, now: int) -> int:
    """Release or cancel an instance, if that is decided."""
    is_open = False
    for each in workload.waits:
        verdict = judge_element(state, each, instance.index) if each.each else judge(state, each)
        is_open = is_open or verdict.is_open
        if verdict.never:  # whatever becomes of the others: by then this one may be forgotten
            element = f".{instance.index}" if each.each else ""
            move(state, out, instance, "cancelled", never_words(f"{each.workload}{element}", verdict.never), now)
            return 1
    if is_open:
        return 0
    instance.waits = False
    instance.since_ms, instance.cause = now, "what it waited for has come"
    tell(instance, "queued", instance.cause, now, state.revision + 1)
    state.touch_instance(instance)
    state.queue.add_again(state.spec_of(instance), instance.index)
    policy = workload.policy
    if policy.queue_timeout_ms:
        state.at(now + policy.queue_timeout_ms, "queue", workload.key)
    if policy.when_full == "reject":
        state.rejectable.append(instance.key)
    return 1


def cancel_waiting(state: State, out: Step, workload: Workload, cause: str, now: int) -> int:
    """What a workload waits for never comes: none of it runs."""
    workload.rest, workload.cause = "cancelled", cause
    state.touch_workload(workload)
    decided = 1
    for index in range(state.begun(workload)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.state == "queued":
            move(state, out, instance, "cancelled", cause, now)
            decided += 1
    finish_if_over(state, workload, now)
    return decided


def _done(state: State, workload: Workload, condition: After) -> None:
    state.wait_for(workload, tuple(each for each in workload.waits if each != condition))
    state.touch_workload(workload)
