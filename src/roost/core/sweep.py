"""What was kept long enough goes: by retention, and the oldest first when there is too much."""

from collections.abc import Container
from heapq import heapify

from roost.core.after import settle_forgotten
from roost.core.effects import Forgotten, Step
from roost.core.gang import leave_gang
from roost.core.state import Progress, State
from roost.core.ticks import leave_schedule
from roost.core.versions import forget_version, versions_of
from roost.model.workload import Workload

TIMERS_SPARE = 10_000  # timers of what has gone that may lie about; 200 bytes each


def sweep(state: State, out: Step) -> None:
    """Keep the finished within bounds. Retention by time comes through timers."""
    most = state.settings.finished_max
    for key in list(state.ended_runs):
        _forget_runs(state, out, key)
    state.ended_runs.clear()
    while max(state.finished_instances, len(state.finished)) > most:
        forget(state, out, state.workloads[next(iter(state.finished))])
    if len(state.timers) + len(state.postponed) > state.timers_most:
        _sweep_timers(state)


def forget(state: State, out: Step, workload: Workload) -> None:
    """Drop a finished workload with its instances and logs."""
    assert workload.finished_ms, f"{workload.key} is not finished"
    key = workload.key
    settle_forgotten(state, out, workload, state.now_ms)
    progress = state.progress.pop(key, None)
    if state.dirty.get(("workload", key)) is not None:
        out.forgotten.append(Forgotten(state.last_of("workload", key), *_begun(progress)))
    if progress is not None:
        state.finished_instances -= sum(progress.counts.values())
        for index in range(progress.begun):
            instance = f"{key}.{index}"
            if state.instances.pop(instance, None) is not None:
                if state.dirty.get(("instance", instance)) is not None:
                    out.forgotten.append(Forgotten(state.last_of("instance", instance)))
                state.dirty["instance", instance] = None
    for number in versions_of(state, workload):
        forget_version(state, workload, number)
    leave_gang(state, workload)
    state.schedules.pop(key, None)
    if workload.parent:
        leave_schedule(state, workload)
    del state.workloads[key]
    state.finished.pop(key, None)
    state.dirty["workload", key] = None
    out.swept.append(f"{key}/{workload.serial}")


def _forget_runs(state: State, out: Step, key: str) -> None:
    """Of the runs of a schedule that are over, only so many are kept: the oldest go."""
    parent = state.workloads.get(key)
    if parent is None or parent.policy.schedule is None:
        return
    runs = [state.workloads[each] for each in state.runs.get(key, ())]
    over = sorted((each for each in runs if each.finished_ms), key=lambda each: each.serial)
    for run in over[: max(0, len(over) - parent.policy.schedule.keep)]:
        forget(state, out, run)


def _begun(progress: Progress | None) -> tuple[int, dict[str, int]]:
    return (progress.begun, progress.counts) if progress is not None else (0, {})


def _sweep_timers(state: State) -> None:
    """Throw out the timers of what has gone: a job that is kept for a week may be forgotten within minutes."""
    owners: dict[str, Container[str]] = {
        "lease": state.nodes,
        "drain": state.nodes,
        "gone": state.nodes,
        "recall": state.nodes,
        "queue": state.workloads,
        "sweep": state.workloads,
        "cron": state.workloads,
        "after": state.workloads,
        "adopted": state.workloads,
        "settle": state.restless,
        "ready": state.instances,
        "reservation": state.reservations,
        "pool": state.pools,
        "flaky": state.nodes,
    }

    def still(timers: list[tuple[int, str, str]]) -> list[tuple[int, str, str]]:
        return [timer for timer in timers if timer[1] not in owners or timer[2] in owners[timer[1]]]

    state.timers, state.postponed = still(state.timers), still(state.postponed)
    heapify(state.timers)
    state.timers_most = 2 * (len(state.timers) + len(state.postponed)) + TIMERS_SPARE
    state.lease_timers.intersection_update(state.nodes)
    state.recalls.intersection_update(state.nodes)
