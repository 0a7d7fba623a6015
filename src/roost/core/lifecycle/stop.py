"""Cancel a workload, at once or over several steps."""

from roost.core.state.outcome import Step
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.core.transitions import finish_if_over, move, stop
from roost.model.keys import instance_key
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.states import ABSENT, ALLOCATED, InstanceState

AT_ONCE_SHARE = 5  # a workload whose cancellation is less than a fifth of a step is cancelled at once


def cancel_all(state: State, out: Step, workload: Workload, reason: Reason, now: int) -> None:
    """Cancel a workload. Nothing of it starts from now on; a large one is stopped over several steps."""
    cancel_rest(state, workload, reason, now)
    if state.placed_count(workload) > state.settings.step_units // AT_ONCE_SHARE:
        workload.cancelling = reason
        state.cancelling[workload.key] = None
        state.touch_workload(workload)
        return
    for instance in instances_of(state, workload):
        cancel_one(state, out, instance, reason, now)
    finish_if_over(state, workload, now)


def cancel_more(state: State, out: Step, now: int) -> None:
    """Go on with the workloads that are being cancelled."""
    most = out.limit(state.settings.step_units)
    while state.cancelling and out.work < most:
        key = next(iter(state.cancelling))
        workload = state.workloads.get(key)
        if workload is None or workload.cancelling is None:  # it has finished by itself, and is gone or replaced
            del state.cancelling[key]
            continue
        first = workload.cancelled_below
        until = min(first + most - out.work, state.placed_count(workload))
        for index in range(first, until):
            instance = state.instances.get(instance_key(key, index))
            if instance is not None:
                cancel_one(state, out, instance, workload.cancelling, now)
        out.work += until - first
        workload.cancelled_below = until
        state.touch_workload(workload)
        if until == state.placed_count(workload):
            del state.cancelling[key]
            workload.cancelling, workload.cancelled_below = None, 0
            finish_if_over(state, workload, now)


def cancel_rest(state: State, workload: Workload, reason: Reason, now: int) -> None:
    if not workload.unstarted_end_state and not workload.finished_ms:
        workload.unstarted_end_state, workload.reason = InstanceState.CANCELLED, reason
        state.touch_workload(workload)


def cancel_one(state: State, out: Step, instance: Instance, reason: Reason, now: int) -> None:
    if instance.state == InstanceState.QUEUED:
        move(state, out, instance, InstanceState.CANCELLED, reason, now)
    if instance.state not in ALLOCATED:
        return
    if instance.state != InstanceState.STOPPING:
        stop(state, out, instance, reason, now)
    elif instance.requeue_after_stop:
        instance.requeue_after_stop, instance.reason = False, reason  # it was to move; now it is not to come back
        state.touch_instance(instance)
    if state.nodes[instance.node].status in ABSENT:
        move(state, out, instance, InstanceState.CANCELLED, reason, now)  # pinned, and no agent can confirm the stop
