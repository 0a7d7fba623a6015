"""Companions: services that live as long as another workload, and are cancelled when that one has finished."""

from collections.abc import Mapping

from roost.core.dependencies import release
from roost.core.lifecycle.stop import cancel_all
from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.model.errors import Conflict, Invalid
from roost.model.events import WorkloadSpec
from roost.model.keys import split_workload_key
from roost.model.reasons.attempts import OwnerEnded
from roost.model.reasons.subjects import WorkloadRef
from roost.model.records.instance import Instance
from roost.model.records.workload import After, Workload
from roost.model.states import Milestone


def owner_refusal(state: State, new: Mapping[str, WorkloadSpec]) -> tuple[str, Invalid] | None:
    """The first new workload whose owner is not there, by key, and why."""
    for key, wanted in new.items():
        owner = state.workloads.get(wanted.policy.until)
        if wanted.policy.until and wanted.policy.until not in new and (owner is None or owner.finished_ms):
            _, name = split_workload_key(wanted.policy.until)
            message = f"there is no unfinished workload {name}; submit it first or in the same request"
            return key, Invalid("until", message)
    return None


def check_owner(state: State, workload: Workload) -> None:
    """Refuse to start a companion again whose owner has finished: nothing would end it."""
    owner = state.workloads.get(workload.policy.until)
    if workload.policy.until and (owner is None or owner.finished_ms):
        message = f"{workload.key} ends with {workload.policy.until}, which is finished; retry that one"
        raise Conflict(message, code="owner_ended")


def stop_companions(state: State, out: Step, now: int) -> None:
    """Cancel the companions of workloads that have finished."""
    for key in state.ended_owners:
        owner = state.workloads.get(key)
        if owner is not None and not owner.finished_ms:
            continue  # it was retried meanwhile, or is not finished after a restart
        for companion in state.companions.get(key, ()):
            workload = state.workloads[companion]
            if owner is None and workload.adopted and now < state.adoption_deadline_ms():
                continue  # an agent may still report its owner; the timer of its adoption looks again
            if not workload.finished_ms and not workload.unstarted_end_state:
                cancel_all(state, out, workload, OwnerEnded(WorkloadRef.of(key)), now)
    state.ended_owners.clear()


def ended_companions(state: State, workload: Workload) -> list[Workload]:
    """The companions that start again when their workload is retried. Raises Conflict while one of them is stopped."""
    companions = [state.workloads[key] for key in state.companions.get(workload.key, ())]
    for companion in companions:
        if companion.unstarted_end_state and not companion.finished_ms:
            message = f"{companion.key}, which ends with {workload.key}, is being stopped; try again in a moment"
            raise Conflict(message, code="being_cancelled")
    return [companion for companion in companions if companion.finished_ms]


def wait_for_companions(state: State, workload: Workload, companions: list[Workload], chosen: list[Instance]) -> None:
    """What is retried starts after its companions, which start again before it."""
    waits = tuple(After(companion.key, Milestone.STARTED) for companion in companions)
    new = tuple(condition for condition in waits if condition not in workload.pending_conditions)
    release.wait(state, workload, workload.pending_conditions + new)
    for instance in chosen:
        instance.blocked_on_dependency = True
