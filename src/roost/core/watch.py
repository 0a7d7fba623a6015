"""Schedules and their runs: when one is due next, and which runs belong to it."""

import numpy as np

from roost.core.state.queue import (
    FOREVER,
    start_by_ms,
)
from roost.core.state.state import State
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.model.records.project import Reservation
from roost.model.records.workload import Schedule, Workload
from roost.model.spec.cron import local_time, next_tick
from roost.model.states import InstanceState


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
        state.at(tick, TimerKind.CRON, workload.key)


def join_schedule(state: State, run: Workload) -> None:
    """Remember a run with its schedule."""
    state.runs.setdefault(run.parent, {})[run.key] = None


def leave_schedule(state: State, run: Workload) -> None:
    """A run is forgotten."""
    runs = state.runs.get(run.parent, {})
    runs.pop(run.key, None)
    if not runs:
        state.runs.pop(run.parent, None)


def format_tick(schedule: Schedule, moment_ms: int) -> str:
    """A tick as its zone's clocks show it, and how far those are from UTC."""
    return local_time(schedule, moment_ms).isoformat(" ", "minutes")


def watch_reservation(state: State, reservation: Reservation) -> None:
    """Look at a reservation when it begins and when it ends."""
    for moment in (reservation.start_ms, reservation.end_ms):
        if moment:
            state.at(max(moment, state.now_ms), TimerKind.RESERVATION, reservation.name)


def watch_queue(state: State, workload: Workload) -> None:
    """Set the timers for what may not wait for ever. A schedule may: each of its runs has limits of its own."""
    if workload.policy.schedule:
        return
    start_by = start_by_ms(workload)
    timeout_ms = workload.policy.queue_timeout_ms
    if timeout_ms:
        state.at(waiting_since_ms(workload) + timeout_ms, TimerKind.QUEUE, workload.key)
    if timeout_ms and any(condition.each for condition in workload.policy.after):
        for instance in instances_of(state, workload):  # each was released at a time of its own
            if instance.state == InstanceState.QUEUED and not instance.blocked_on_dependency:
                state.at(instance.since_ms + timeout_ms, TimerKind.QUEUE, workload.key)
    if start_by != FOREVER:
        state.at(start_by, TimerKind.QUEUE, workload.key)


def waiting_since_ms(workload: Workload) -> int:
    """Since when it waits for nothing but room."""
    return max(workload.submitted_ms, workload.released_ms)


def watch_pool(state: State, name: str) -> None:
    """Note since when no node of a pool is in touch, and look at it again when that has been for too long."""
    pool = state.pools.get(name)
    if pool is None or not pool.fail_after_ms or in_touch(state, name):
        state.silent_pools.pop(name, None)
    elif name not in state.silent_pools:
        state.silent_pools[name] = state.now_ms
        state.at(state.now_ms + pool.fail_after_ms, TimerKind.POOL, name)


def in_touch(state: State, name: str) -> bool:
    """Whether a node of a pool is in touch."""
    fleet = state.fleet
    own = fleet.cached_mask(("of pool", name), lambda _, facts: facts.pool == name)
    return bool(np.any(own & fleet.online))
