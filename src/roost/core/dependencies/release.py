"""Who waits for whom: released when what it waits for has come, cancelled when that can never come any more.

`Workload.waits` are the conditions that do not hold yet. One on all of a workload leaves it as soon as it holds; one
that goes element by element stays until the other workload is over, and each instance says for itself whether it waits.
Nothing is decided where it happens: a change is noted in `state.dependency_changes`, and `release_dependents` goes
through the notes.
"""

from roost.core.dependencies.conditions import evaluate, evaluate_element
from roost.core.state.dependencies import ALL
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.core.transitions import finish_if_over, move, note_instance
from roost.core.watch import watch_queue
from roost.model.reasons.attempts import DependenciesMet
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import After, Workload
from roost.model.states import InstanceState, Milestone, WhenFull, WorkloadKind

DECISIONS_MAX = 2_000  # in one step, as many as placements: a commit stays below a megabyte
DEFAULT_WHEN = {
    WorkloadKind.JOB: Milestone.SUCCEEDED,
    WorkloadKind.SERVICE: Milestone.STARTED,
    WorkloadKind.VM: Milestone.STARTED,
}


def release_dependents(state: State, out: Step, now: int) -> None:
    """Decide for whom something has come. What is too much for one step stays in the news for the next."""
    left = DECISIONS_MAX
    while state.dependency_changes and left > 0:
        key = next(iter(state.dependency_changes))
        indexes = state.dependency_changes.pop(key)
        for dependant in list(state.dependents.get(key, ())):
            left -= _decide(state, out, dependant, key, indexes, now)
            if left <= 0:
                state.dependency_changes.setdefault(key, {}).update(indexes)
                break


def release_forgotten(state: State, out: Step, workload: Workload, now: int) -> None:
    """A workload that is over is about to be forgotten: whoever still waits for it is decided at once."""
    for dependant in list(state.dependents.get(workload.key, ())):
        _decide(state, out, dependant, workload.key, {ALL: None}, now)
    state.dependency_changes.pop(workload.key, None)


def begin_dependencies(state: State, workload: Workload) -> None:
    """A workload was taken in, or is to wait once more: for all that it names, until the next look says otherwise."""
    wait(state, workload, conditions_of(state, workload))


def wait(state: State, workload: Workload, conditions: tuple[After, ...]) -> None:
    """Let a workload wait for these; those that hold already are found out in the same step."""
    state.set_pending_conditions(workload, conditions)
    state.touch_workload(workload)
    for condition in conditions:
        state.notify_dependents(condition.workload)


def conditions_of(state: State, workload: Workload) -> tuple[After, ...]:
    """What a workload names, each with the `when` that is meant: what is left out depends on the other's kind."""
    return tuple(
        After(condition.workload, condition.when or DEFAULT_WHEN[_kind_of(state, condition.workload)], condition.each)
        for condition in workload.policy.after
    )


def change_dependencies(state: State, existing: Workload, new: Workload) -> None:
    """A workload that waits has become another version: what it names no more is left out, what is new comes in."""
    before = {condition.workload for condition in existing.policy.after}
    stored = {condition.workload: condition for condition in existing.pending_conditions}
    found = []
    for condition in conditions_of(state, new) if existing.pending_conditions else ():
        if condition.workload not in before or condition.workload in stored:
            found.append(condition)
    found += [
        condition for condition in existing.pending_conditions if condition.workload not in before
    ]  # a run of a schedule waits for others
    new.pending_conditions = existing.pending_conditions
    wait(state, new, tuple(found))
    if existing.pending_conditions and not found:
        _release(state, new, state.now_ms)


def depends_by_element(workload: Workload) -> bool:
    """Whether its elements wait for an element each."""
    return any(condition.each for condition in workload.policy.after)


def bad_elements(state: State, workload: Workload, index: int) -> Reason | None:
    """Why an element that never got to run cannot even be tried again; None: it can wait."""
    for condition in conditions_of(state, workload):
        if condition.each:
            verdict = evaluate_element(state, condition, index)
            if verdict.impossible is not None:
                return verdict.impossible
    return None


def bad_conditions(state: State, workload: Workload) -> Reason | None:
    """Why a workload that was never released cannot be either; None: it can wait."""
    for condition in conditions_of(state, workload):
        verdict = evaluate(state, condition)
        if not condition.each and verdict.impossible is not None:
            return verdict.impossible
    return None


def _kind_of(state: State, key: str) -> WorkloadKind:
    other = state.workloads.get(key)
    return other.policy.kind if other is not None else WorkloadKind.JOB


def _decide(state: State, out: Step, dependant: str, key: str, indexes: dict[int, None], now: int) -> int:
    """Look at one condition of one workload. How much was decided."""
    workload = state.workloads[dependant]
    condition = next(wait for wait in workload.pending_conditions if wait.workload == key)
    if condition.each:
        return _decide_elements(state, out, workload, condition, indexes, now)
    verdict = evaluate(state, condition, indexes)
    if verdict.satisfied:
        _done(state, workload, condition)
        return 1 + _release_if_free(state, out, workload, now)
    if verdict.impossible is not None:
        return cancel_dependents(state, out, workload, verdict.impossible, now)
    return 0


def _decide_elements(
    state: State, out: Step, workload: Workload, condition: After, indexes: dict[int, None], now: int
) -> int:
    decided = 0
    for index in range(workload.count) if ALL in indexes else list(indexes):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.blocked_on_dependency and instance.state == InstanceState.QUEUED:
            decided += _try_element(state, out, workload, instance, now)
    other = state.workloads.get(condition.workload)
    if condition in workload.pending_conditions and (
        other is None or other.finished_ms
    ):  # all its elements are decided
        _done(state, workload, condition)
        decided += 1
    return decided


def _release_if_free(state: State, out: Step, workload: Workload, now: int) -> int:
    """Nothing that is about all of it is left to wait for: each of its elements may go, or has its own to wait for."""
    if any(not condition.each for condition in workload.pending_conditions):
        return 0
    decided = 0
    for instance in instances_of(state, workload):
        if instance.blocked_on_dependency and instance.state == InstanceState.QUEUED:
            decided += _try_element(state, out, workload, instance, now)
    _release(state, workload, now)
    return decided


def _release(state: State, workload: Workload, now: int) -> None:
    """From now on it waits for nothing but room."""
    workload.released_ms = now
    state.touch_workload(workload)
    if state.has_unstarted(workload):
        state.queue.add_unstarted(workload)
        if workload.policy.when_full == WhenFull.REJECT:
            state.rejectable.append(workload.key)
    watch_queue(state, workload)


def _try_element(state: State, out: Step, workload: Workload, instance: Instance, now: int) -> int:
    """Release or cancel an instance, if that is decided."""
    is_open = False
    for condition in workload.pending_conditions:
        verdict = evaluate_element(state, condition, instance.index) if condition.each else evaluate(state, condition)
        is_open = is_open or verdict.is_open
        if verdict.impossible is not None:  # whatever becomes of the others: by then this one may be forgotten
            move(state, out, instance, InstanceState.CANCELLED, verdict.impossible, now)
            return 1
    if is_open:
        return 0
    instance.blocked_on_dependency = False
    instance.since_ms, instance.reason = now, DependenciesMet()
    note_instance(state, instance, "queued", instance.reason, now)
    state.touch_instance(instance)
    state.queue.add_requeued(state.spec_of(instance), instance.index)
    policy = workload.policy
    if policy.queue_timeout_ms:
        state.at(now + policy.queue_timeout_ms, TimerKind.QUEUE, workload.key)
    if policy.when_full == WhenFull.REJECT:
        state.rejectable.append(instance.key)
    return 1


def cancel_dependents(state: State, out: Step, workload: Workload, reason: Reason, now: int) -> int:
    """What a workload waits for never comes: none of it runs."""
    workload.unstarted_end_state, workload.reason = InstanceState.CANCELLED, reason
    state.touch_workload(workload)
    decided = 1
    for instance in instances_of(state, workload):
        if instance.state == InstanceState.QUEUED:
            move(state, out, instance, InstanceState.CANCELLED, reason, now)
            decided += 1
    finish_if_over(state, workload, now)
    return decided


def _done(state: State, workload: Workload, condition: After) -> None:
    state.set_pending_conditions(workload, tuple(wait for wait in workload.pending_conditions if wait != condition))
    state.touch_workload(workload)
