"""Dependents: released when their conditions hold, cancelled when a condition can no longer hold.

`Workload.pending_conditions` are those that do not hold yet. One on all of a workload leaves it as soon as it holds;
one that goes element by element stays until the other workload has finished, and `Instance.blocked_on_dependency` says
which instances wait. Nothing is decided where it happens: a change is noted in `state.dependency_changes`, and
`release_dependents` goes through the notes.
"""

from roost.core.dependencies.conditions import evaluate, evaluate_element, evaluate_for
from roost.core.dependencies.gates import CONDITION_UNITS, approval_of, condition_refusal, end_of
from roost.core.dependencies.inputs import missing_files, take_files
from roost.core.state.dependencies import ALL
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.core.transitions import finish_if_over, move, note_instance
from roost.core.watch import watch_queue
from roost.model.errors import Conflict, Forbidden
from roost.model.events import Approve, WorkloadSpec
from roost.model.keys import instance_key
from roost.model.reasons.attempts import Approved, DependenciesMet, NeedsApproval
from roost.model.reasons.reason import DependencyEnded, Reason
from roost.model.records.access import RANKS
from roost.model.records.instance import Instance
from roost.model.records.workload import After, Workload
from roost.model.states import InstanceState, Milestone, WhenFull, WorkloadKind

DECISIONS_MAX = 2_000  # in one step, as many as placements: a commit stays below a megabyte
FILES_PER_DECISION = 5  # sets of files that a dependent gets: 100 bytes in its record each


def release_dependents(state: State, out: Step, now: int) -> None:
    """Decide the conditions of changed workloads. What is too much for one step is left for the next."""
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
    """A finished workload is about to be forgotten: its dependents are decided at once."""
    for dependant in list(state.dependents.get(workload.key, ())):
        _decide(state, out, dependant, workload.key, {ALL: None}, now)
    state.dependency_changes.pop(workload.key, None)


def begin(state: State, out: Step, workload: Workload, now: int) -> int:
    """A workload is new, or starts again: it waits for its dependencies, or is decided at once. Returns the work."""
    conditions = conditions_of(state, workload)
    if conditions:
        wait(state, workload, conditions)
        return 0
    return _proceed(state, out, workload, now)


def approve(state: State, out: Step, event: Approve, now: int) -> None:
    """Let a workload start that waits for nothing but approval. Twice is fine."""
    workload = state.known_workload(event.workload)
    role = workload.policy.approval_role
    if not role:
        raise Conflict(f"{workload.key} needs no approval", code="no_approval")
    if event.rank < RANKS[role]:
        where = f"in project {workload.project}"
        raise Forbidden(f"this needs the role {role} {where}", params={"role": role, "project": workload.project})
    if workload.approval is None:
        if workload.unstarted_end_state or workload.finished_ms:
            raise Conflict(f"{workload.key} is over", code="is_over")
        if approval_of(workload)[0] not in workload.pending_conditions:
            raise Conflict(f"{workload.key} still waits for its dependencies", code="not_yet")
        workload.approval, workload.reason = Approved(out.principal), None
        state.touch_workload(workload)
        state.notify_dependents(workload.key)
    out.reply(event.request, workload.key)


def wait(state: State, workload: Workload, conditions: tuple[After, ...]) -> None:
    """Set the pending conditions of a workload. Those that hold already are found in the same step."""
    state.set_pending_conditions(workload, conditions)
    state.touch_workload(workload)
    for condition in conditions:
        state.notify_dependents(condition.workload)


def conditions_of(state: State, workload: Workload | WorkloadSpec) -> tuple[After, ...]:
    """The dependencies of a workload, each with its `when`: the default depends on the kind of the other."""
    return tuple(
        After(condition.workload, condition.when or _default_when(state, condition.workload), condition.each)
        for condition in workload.policy.after
    )


def _default_when(state: State, key: str) -> Milestone:
    other = state.workloads.get(key)
    is_job = other is None or other.policy.kind == WorkloadKind.JOB
    return Milestone.SUCCEEDED if is_job else Milestone.STARTED


def change_dependencies(state: State, existing: Workload, new: Workload) -> None:
    """A pending workload has a new version: drop the conditions that it no longer names, and add the new ones."""
    before = {condition.workload for condition in existing.policy.after}
    stored = {condition.workload: condition for condition in existing.pending_conditions}
    settled = settled_conditions(state, existing, new)
    found = [condition for condition in conditions_of(state, new) if condition not in settled]
    # A run of a schedule waits for other runs, which its document does not name.
    found += [condition for key, condition in stored.items() if key not in before]
    new.pending_conditions = existing.pending_conditions
    wait(state, new, tuple(found))
    if existing.pending_conditions and not found:
        _release(state, new, state.now_ms)


def settled_conditions(state: State, existing: Workload, new: Workload | WorkloadSpec) -> tuple[After, ...]:
    """The conditions of a new version that it does not wait for: they held before, or it was released."""
    before = {condition.workload for condition in existing.policy.after}
    waits = {condition.workload for condition in existing.pending_conditions}
    is_settled = {key for key in before if key not in waits}
    return tuple(item for item in conditions_of(state, new) if not waits or item.workload in is_settled)


def depends_by_element(workload: Workload) -> bool:
    return any(condition.each for condition in workload.policy.after)


def bad_elements(state: State, workload: Workload, index: int) -> Reason | None:
    """Why an element that never ran cannot be retried; None: it can wait."""
    conditions = [condition for condition in conditions_of(state, workload) if condition.each]
    return _first_impossible(state, workload, conditions, index)


def bad_conditions(state: State, workload: Workload) -> Reason | None:
    """Why a workload that was never released cannot be retried; None: it can wait."""
    companions = state.companions.get(workload.key, ())  # they start again with it
    conditions = [item for item in conditions_of(state, workload) if not item.each and item.workload not in companions]
    return _first_impossible(state, workload, conditions)


def _first_impossible(
    state: State, workload: Workload, conditions: list[After], index: int | None = None
) -> Reason | None:  # fmt: skip
    for condition in conditions:
        impossible = evaluate_for(state, condition, index).impossible
        reason = impossible or missing_files(state, workload, condition, index)
        if reason is not None:
            return reason
    return None


def _decide(state: State, out: Step, dependant: str, key: str, indexes: dict[int, None], now: int) -> int:
    """Returns how much was decided."""
    workload = state.workloads[dependant]
    condition = next(wait for wait in workload.pending_conditions if wait.workload == key)
    if condition.each:
        return _decide_elements(state, out, workload, condition, indexes, now)
    verdict = evaluate(state, condition, indexes)
    if verdict.satisfied:
        missing = take_files(state, workload, condition)
        if missing is not None:
            return cancel_dependents(state, out, workload, missing, now)
        _done(state, workload, condition)
        more = 1 + len(workload.input_files) // FILES_PER_DECISION
        if any(not other.each for other in workload.pending_conditions):
            return more
        is_approval = condition.when == Milestone.APPROVED
        return more + (_release_all(state, out, workload, now) if is_approval else _proceed(state, out, workload, now))
    if verdict.impossible is not None:
        return cancel_dependents(state, out, workload, verdict.impossible, now)
    return 0


def _decide_elements(
    state: State, out: Step, workload: Workload, condition: After, indexes: dict[int, None], now: int
) -> int:
    decided = 0
    for index in range(workload.count) if ALL in indexes else list(indexes):
        instance = state.instances.get(instance_key(workload.key, index))
        if instance is not None and instance.blocked_on_dependency and instance.state == InstanceState.QUEUED:
            decided += _try_element(state, out, workload, instance, now)
    other = state.workloads.get(condition.workload)
    is_decided = other is None or other.finished_ms
    if is_decided and condition in workload.pending_conditions:
        _done(state, workload, condition)
        decided += 1
    return decided


def _proceed(state: State, out: Step, workload: Workload, now: int) -> int:
    """No dependency of all of it is open: its condition decides whether it starts, and then its approval when."""
    refusal = condition_refusal(state, workload)
    if refusal is not None:
        return CONDITION_UNITS + _end_unstarted(state, out, workload, end_of(refusal), refusal, now)
    approval = approval_of(workload)
    if not approval:
        return _release_all(state, out, workload, now) + CONDITION_UNITS * bool(workload.policy.condition)
    workload.reason = NeedsApproval(workload.policy.approval_role)
    wait(state, workload, workload.pending_conditions + approval)
    return CONDITION_UNITS


def _release_all(state: State, out: Step, workload: Workload, now: int) -> int:
    """Each element may go, or waits for its own dependency."""
    decided = 0
    for instance in instances_of(state, workload):
        if instance.blocked_on_dependency and instance.state == InstanceState.QUEUED:
            decided += _try_element(state, out, workload, instance, now)
    _release(state, workload, now)
    return decided


def _release(state: State, workload: Workload, now: int) -> None:
    workload.released_ms = now
    state.touch_workload(workload)
    enqueue(state, workload)
    watch_queue(state, workload)


def enqueue(state: State, workload: Workload) -> None:
    if state.has_unstarted(workload):
        state.queue.add_unstarted(workload)
        if workload.policy.when_full == WhenFull.REJECT:
            state.rejectable.append(workload.key)


def _try_element(state: State, out: Step, workload: Workload, instance: Instance, now: int) -> int:
    is_open = False
    for condition in workload.pending_conditions:
        verdict = evaluate_element(state, condition, instance.index) if condition.each else evaluate(state, condition)
        is_open = is_open or verdict.is_open
        reason: Reason | None = verdict.impossible
        if condition.each and verdict.satisfied:
            reason = take_files(state, workload, condition, instance)
        if reason is not None:  # at once: later, the dependency may be forgotten
            move(state, out, instance, InstanceState.CANCELLED, reason, now)
            return 1
    if is_open:
        return 0
    instance.blocked_on_dependency = False
    instance.since_ms, instance.reason = now, DependenciesMet()
    note_instance(state, instance, instance.state, instance.reason, now)
    state.touch_instance(instance)
    state.queue.add_requeued(state.spec_of(instance), instance.index)
    policy = workload.policy
    if policy.queue_timeout_ms:
        state.at(now + policy.queue_timeout_ms, TimerKind.QUEUE, workload.key)
    if policy.when_full == WhenFull.REJECT:
        state.rejectable.append(instance.key)
    return 1


def cancel_dependents(state: State, out: Step, workload: Workload, reason: Reason, now: int) -> int:
    """A dependency ended otherwise than required. What follows a skipped workload is also skipped."""
    is_skipped = isinstance(reason, DependencyEnded) and reason.state == InstanceState.SKIPPED
    ending = InstanceState.SKIPPED if is_skipped else InstanceState.CANCELLED
    return _end_unstarted(state, out, workload, ending, reason, now)


def _end_unstarted(
    state: State, out: Step, workload: Workload, ending: InstanceState, reason: Reason, now: int
) -> int:  # fmt: skip
    workload.unstarted_end_state, workload.reason = ending, reason
    state.touch_workload(workload)
    decided = 1
    for instance in instances_of(state, workload):
        if instance.state == InstanceState.QUEUED:
            move(state, out, instance, ending, reason, now)
            decided += 1
    finish_if_over(state, workload, now)
    return decided


def _done(state: State, workload: Workload, condition: After) -> None:
    state.set_pending_conditions(workload, tuple(wait for wait in workload.pending_conditions if wait != condition))
    state.touch_workload(workload)
