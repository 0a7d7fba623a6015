"""Conditions of dependents: satisfied, open, or impossible with a reason."""

from typing import NamedTuple

from roost.core.state.dependencies import ALL
from roost.core.state.state import State
from roost.model.keys import instance_key
from roost.model.reasons.attempts import DependencyUnknown
from roost.model.reasons.reason import DependencyEnded, Text, joined, shortened
from roost.model.reasons.subjects import InstanceRef, Ref, WorkloadRef
from roost.model.records.instance import Instance
from roost.model.records.workload import After, Workload
from roost.model.states import FINISHED, WORST_FIRST, InstanceState, Milestone, WorkloadKind

LOOKED_AT_MAX = 10_000  # instances searched for the one that failed: some milliseconds
LISTED_MAX = 3  # conditions that are listed; the rest is counted
FOR_OUTPUTS = ", for its outputs"
CONDITION_TEXT: dict[Milestone | None, str] = {
    Milestone.SUCCEEDED: "to succeed",
    Milestone.FINISHED: "to finish",
    Milestone.STARTED: "to start",
    Milestone.APPROVED: "to be approved",
}


class ConditionStatus(NamedTuple):
    satisfied: bool = False
    impossible: DependencyEnded | DependencyUnknown | None = None  # why it can no longer hold

    @property
    def is_open(self) -> bool:
        return not self.satisfied and self.impossible is None


SATISFIED = ConditionStatus(satisfied=True)
OPEN = ConditionStatus()


def evaluate(state: State, condition: After, indexes: dict[int, None] | None = None) -> ConditionStatus:
    """A condition on all of a workload. `indexes`: the changed instances; None: all of them."""
    other = state.workloads.get(condition.workload)
    if other is None:  # whatever is forgotten was over
        unknown = DependencyUnknown(WorkloadRef.of(condition.workload))
        return SATISFIED if condition.when == Milestone.FINISHED else ConditionStatus(impossible=unknown)
    if condition.when == Milestone.APPROVED:
        return OPEN if other.approval is None else SATISFIED
    if condition.when == Milestone.STARTED:
        if _has_started(state, other, indexes):
            return SATISFIED
        return ConditionStatus(impossible=ended_badly(state, other)) if other.finished_ms else OPEN
    if not other.finished_ms:
        return OPEN
    if condition.when == Milestone.FINISHED:
        return SATISFIED
    if other.adopted and sum(state.progress_of(other).counts.values()) < other.count:
        # No agent reported the rest, which may have failed.
        return ConditionStatus(impossible=DependencyUnknown(WorkloadRef.of(other.key), is_partial=True))
    if ending_of(state, other) == InstanceState.SUCCEEDED:
        return SATISFIED
    return ConditionStatus(impossible=ended_badly(state, other))


def evaluate_element(state: State, condition: After, index: int) -> ConditionStatus:
    other = state.workloads.get(condition.workload)
    if other is None:
        unknown = DependencyUnknown(WorkloadRef.of(condition.workload), index)
        return SATISFIED if condition.when == Milestone.FINISHED else ConditionStatus(impossible=unknown)
    instance = state.instances.get(instance_key(other.key, index))
    if instance is not None:
        now, cause = instance.state, instance.reason
    elif index < state.placed_count(other):
        now, cause = InstanceState.FAILED if other.finished_ms else InstanceState.LOST, None
    else:
        now = (other.unstarted_end_state if other.finished_ms else None) or InstanceState.QUEUED
        cause = other.reason
    if condition.when == Milestone.STARTED and instance is not None and has_run(instance):
        return SATISFIED
    if now not in FINISHED:
        return OPEN
    is_success = condition.when == Milestone.SUCCEEDED and now == InstanceState.SUCCEEDED
    if condition.when == Milestone.FINISHED or is_success:
        return SATISFIED
    return ConditionStatus(impossible=DependencyEnded(WorkloadRef.of(other.key), index, now, cause=shortened(cause)))


def evaluate_for(state: State, condition: After, index: int | None) -> ConditionStatus:
    if condition.each and index is not None:
        return evaluate_element(state, condition, index)
    return evaluate(state, condition)


def has_run(instance: Instance) -> bool:
    return instance.started_ms > 0 or any(line.state == "running" for line in instance.story)


def ending_of(state: State, workload: Workload) -> InstanceState:
    progress = state.progress.get(workload.key)
    counts = progress.counts if progress is not None else {}
    if workload.unstarted_end_state and (progress is None or progress.placed_count < workload.count):
        counts = counts | {workload.unstarted_end_state: 1}
    return next((name for name in WORST_FIRST if counts.get(name)), InstanceState.SUCCEEDED)


def ended_badly(state: State, workload: Workload) -> DependencyEnded:
    ending, own = ending_of(state, workload), WorkloadRef.of(workload.key)
    if workload.unstarted_end_state == ending and workload.reason is not None:
        return DependencyEnded(own, state=ending, cause=shortened(workload.reason))
    for index in range(min(state.placed_count(workload), LOOKED_AT_MAX)):
        instance = state.instances.get(instance_key(workload.key, index))
        if instance is not None and instance.state == ending:
            which = index if workload.count > 1 else None
            return DependencyEnded(own, state=ending, instance=which, cause=shortened(instance.reason))
    return DependencyEnded(own, state=ending, cause=shortened(workload.reason))


def waiting_text(state: State, workload: Workload, index: int | None = None) -> Text:
    """What a workload, or one of its elements, waits for: `waits for default/build to succeed (it is running)`."""
    found = [
        _condition_text(state, condition, index, is_input=_is_input(workload, condition))
        for condition in workload.pending_conditions
        if evaluate_for(state, condition, index).is_open
    ]
    return ("waits for ", *_listed(found)) if found else ("is about to be released",)


def pending_text(workload: Workload) -> Text:
    """What a workload waits for, without the state of those workloads."""
    found: list[Text] = []
    for condition in workload.pending_conditions:
        more = FOR_OUTPUTS * _is_input(workload, condition)
        found.append((WorkloadRef.of(condition.workload), f" {CONDITION_TEXT[condition.when]}{more}"))
    return ("waits for ", *_listed(found)) if found else ()


def _is_input(workload: Workload, condition: After) -> bool:
    return any(item.workload == condition.workload for item in workload.policy.inputs)


def _has_started(state: State, workload: Workload, indexes: dict[int, None] | None) -> bool:
    """A job: an instance has run, however it ended. Others: an instance is ready."""
    looked_at = range(state.placed_count(workload)) if indexes is None or ALL in indexes else indexes
    for index in looked_at:
        instance = state.instances.get(instance_key(workload.key, index))
        if instance is None:
            continue
        if has_run(instance) if workload.policy.kind == WorkloadKind.JOB else instance.ready_since_ms > 0:
            return True
    return False


def _condition_text(state: State, condition: After, index: int | None, *, is_input: bool) -> Text:
    other = state.workloads.get(condition.workload)
    if condition.when == Milestone.APPROVED and other is not None:
        return (f"approval by a user with the role {other.policy.approval_role}",)
    element = index if condition.each else None
    subject: Ref = WorkloadRef.of(condition.workload)
    if element is not None:
        subject = InstanceRef.of(instance_key(condition.workload, element))
    is_service = other is not None and other.policy.kind != WorkloadKind.JOB
    what = "to be ready" if is_service else CONDITION_TEXT[condition.when]
    return subject, f" {what}{FOR_OUTPUTS * is_input} ({_format_now(state, other, element)})"


def _format_now(state: State, other: Workload | None, index: int | None) -> str:
    if other is None:
        return "it is no longer known"
    if index is not None:
        instance = state.instances.get(instance_key(other.key, index))
        return f"it is {instance.state if instance is not None else InstanceState.QUEUED}"
    counts = state.progress[other.key].counts if other.key in state.progress else {}
    if other.pending_conditions:
        return "it waits itself"
    if any(counts.get(item) for item in (InstanceState.RUNNING, InstanceState.STARTING, InstanceState.PLACED)):
        return "it is running"
    return "it is stopping" if counts.get(InstanceState.STOPPING) else "it is queued"


def _listed(found: list[Text]) -> Text:
    more = f" and {len(found) - LISTED_MAX} more" if len(found) > LISTED_MAX else ""
    return (*joined(", ", found[:LISTED_MAX]), more)
