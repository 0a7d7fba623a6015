"""Retention: finished workloads are forgotten on request, after their time, or when there are too many."""

from roost.core.dependencies.release import release_forgotten
from roost.core.state.dependencies import unlink
from roost.core.state.files import count_instance_files, count_workload_files
from roost.core.state.outcome import Paced, Step
from roost.core.state.records import Progress
from roost.core.state.results import count_result
from roost.core.state.state import State
from roost.core.state.versions import forget_version, versions_of
from roost.model.errors import Conflict
from roost.model.events import Delete
from roost.model.keys import instance_key
from roost.model.records.instance import Instance
from roost.model.records.transition import InstanceTransitioned, WorkloadRemoved, lines_between
from roost.model.records.workload import Workload

FORGOTTEN_PER_UNIT = 5  # instances, 2 us each


def sweep(state: State, out: Step) -> Paced[None]:
    """Forget what timers have retired, and keep the finished within bounds. It may be long, so it can pause.

    Timers cannot: a heartbeat that is answered in a pause must come before any lease that is looked at.
    """
    for workload in out.retired:
        if state.workloads.get(workload.key) is workload:
            yield from forget(state, out, workload)
    most = state.settings.finished_max
    for key in list(state.ended_runs):
        yield from _forget_runs(state, out, key)
    state.ended_runs.clear()
    while max(state.finished_instances, len(state.finished)) > most:
        yield from forget(state, out, state.workloads[next(iter(state.finished))])


def delete(state: State, out: Step, event: Delete) -> Paced[None]:
    """Forget a finished workload on request."""
    workload = state.known_workload(event.workload)
    if not workload.finished_ms:
        message = f"{workload.key} is not finished; cancel it, and delete it when it has stopped"
        raise Conflict(message, code="not_finished", params={"workload": workload.key})
    yield from forget(state, out, workload)
    out.reply(event.request, workload.key)


def forget(state: State, out: Step, workload: Workload) -> Paced[None]:
    assert workload.finished_ms, f"{workload.key} is not finished"
    key = workload.key
    release_forgotten(state, out, workload, state.now_ms)
    progress = state.progress.pop(key, None) or Progress()
    if state.dirty.get(("workload", key)) is not None:
        record = state.encoded_record("workload", key)
        out.transitions.append(WorkloadRemoved(key, record, progress.placed_count, progress.counts))
    state.finished_instances -= sum(progress.counts.values())
    for index in range(progress.placed_count):
        instance = state.instances.pop(instance_key(key, index), None)
        if instance is not None:
            drop_instance(state, out, instance)
        if not index % FORGOTTEN_PER_UNIT:
            yield 1
    for number in versions_of(state, workload):
        forget_version(state, workload, number)
    unlink(state.gangs, workload.policy.gang, workload.key)
    state.schedules.pop(key, None)
    if workload.policy.until:
        unlink(state.companions, workload.policy.until, workload.key)
    if workload.parent:
        unlink(state.runs, workload.parent, workload.key)
    count_workload_files(state, state.workloads.pop(key), -1)
    state.finished.pop(key, None)
    state.dirty["workload", key] = None
    out.swept.append(f"{key}/{workload.serial}")


def drop_instance(state: State, out: Step, instance: Instance) -> None:
    """Remove the record of a finished instance. What this step did to it is still reported."""
    key = instance.key
    count_result(state, instance, -1)
    count_instance_files(state, instance, -1)
    if state.dirty.get(("instance", key)) is not None:
        record = state.encoded_record("instance", key)
        lines = lines_between(instance.story, state.revision, state.revision + 1)
        out.transitions += [InstanceTransitioned(key, line, record) for line in lines]
    state.dirty["instance", key] = None


def _forget_runs(state: State, out: Step, key: str) -> Paced[None]:
    parent = state.workloads.get(key)
    if parent is None or parent.policy.schedule is None:
        return
    runs = [state.workloads[run] for run in state.runs.get(key, ())]
    over = sorted((workload for workload in runs if workload.finished_ms), key=lambda run: run.serial)
    for run in over[: max(0, len(over) - parent.policy.schedule.history_limit)]:
        yield from forget(state, out, run)
