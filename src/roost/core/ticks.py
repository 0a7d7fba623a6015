"""Schedules and their runs: when one is due next, and which runs belong to it."""

from roost.core.state import State
from roost.model.schedule import local_time, next_tick
from roost.model.workload import Schedule, Workload


def reschedule(state: State, workload: Workload, now: int, before: Schedule | None = None) -> None:
    """A schedule begins, or has become another one: from now on it is due by its own line. The same one goes on."""
    state.schedules[workload.key] = None
    if workload.policy.schedule != before:
        workload.tick_ms = max(workload.tick_ms, now)
        state.touch_workload(workload)
    watch_schedule(state, workload)


def watch_schedule(state: State, workload: Workload) -> None:
    """Look at a schedule when it is due. Ticks up to the last one that was dealt with never come again, whatever the
    clock says."""
    assert workload.policy.schedule is not None, f"{workload.key} has no schedule"
    tick = next_tick(workload.policy.schedule, workload.tick_ms)
    if tick is not None:
        state.at(tick, "cron", workload.key)


def join_schedule(state: State, run: Workload) -> None:
    """Remember a run with its schedule."""
    state.runs.setdefault(run.parent, {})[run.key] = None


def leave_schedule(state: State, run: Workload) -> None:
    """A run is forgotten."""
    runs = state.runs.get(run.parent, {})
    runs.pop(run.key, None)
    if not runs:
        state.runs.pop(run.parent, None)


def when_words(schedule: Schedule, moment_ms: int) -> str:
    """A tick as its zone's clocks show it, and how far those are from UTC."""
    return local_time(schedule, moment_ms).isoformat(" ", "minutes")
