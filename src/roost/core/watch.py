"""Timers of schedules, reservations, pending workloads and pools."""

import numpy as np

from roost.core.state.queue import FOREVER, start_by_ms
from roost.core.state.state import State, in_maintenance
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.model.records.project import Reservation
from roost.model.records.workload import Schedule, Workload
from roost.model.spec.cron import next_tick
from roost.model.states import InstanceState


def reschedule(state: State, workload: Workload, now: int, before: Schedule | None = None) -> None:
    """Start a schedule. One that differs from `before` counts from now; the same one goes on."""
    state.schedules[workload.key] = None
    if workload.policy.schedule != before:
        workload.tick_ms = max(workload.tick_ms, now)
        state.touch_workload(workload)
    watch_schedule(state, workload)


def watch_schedule(state: State, workload: Workload) -> None:
    """Set the timer of the next tick. Ticks up to the last handled one never come again, whatever the clock says."""
    assert workload.policy.schedule is not None, f"{workload.key} has no schedule"
    tick = next_tick(workload.policy.schedule, workload.tick_ms)
    if tick is not None:
        state.at(tick, TimerKind.CRON, workload.key)


def coming_ticks(state: State, workload: Workload, most: int, now_ms: int) -> list[int]:
    """The next ticks of a schedule; none if it has ended. Those that pass during maintenance make no run then."""
    schedule = workload.policy.schedule
    if schedule is None or workload.unstarted_end_state or workload.finished_ms:
        return []
    after_ms, found = max(workload.tick_ms, now_ms if in_maintenance(state) else 0), list[int]()
    while len(found) < most and (tick := next_tick(schedule, found[-1] if found else after_ms)) is not None:
        found.append(tick)
    return found


def watch_reservation(state: State, reservation: Reservation) -> None:
    for moment in (reservation.start_ms, reservation.end_ms):
        if moment:
            state.at(max(moment, state.now_ms), TimerKind.RESERVATION, reservation.name)


def watch_queue(state: State, workload: Workload) -> None:
    """Set the timers of the queue timeout and the deadline. The runs of a schedule have their own."""
    if workload.policy.schedule:
        return
    start_by = start_by_ms(workload)
    timeout_ms = workload.policy.queue_timeout_ms
    if timeout_ms:
        state.at(waiting_since_ms(workload) + timeout_ms, TimerKind.QUEUE, workload.key)
    if timeout_ms and any(condition.each for condition in workload.policy.after):
        for instance in instances_of(state, workload):  # released one by one
            if instance.state == InstanceState.QUEUED and not instance.blocked_on_dependency:
                state.at(instance.since_ms + timeout_ms, TimerKind.QUEUE, workload.key)
    if start_by != FOREVER:
        state.at(start_by, TimerKind.QUEUE, workload.key)


def waiting_since_ms(workload: Workload) -> int:
    """Since when it is pending without pending conditions."""
    return max(workload.submitted_ms, workload.released_ms)


def watch_pool(state: State, name: str) -> None:
    """Note since when no node of a pool is in touch, and set the timer after which the pool fails."""
    pool = state.pools.get(name)
    if pool is None or not pool.fail_after_ms or in_touch(state, name):
        state.silent_pools.pop(name, None)
    elif name not in state.silent_pools:
        state.silent_pools[name] = state.now_ms
        state.at(state.now_ms + pool.fail_after_ms, TimerKind.POOL, name)


def in_touch(state: State, name: str) -> bool:
    fleet = state.fleet
    own = fleet.field_mask(("of pool", name), "pool", lambda pool: pool == name)
    return bool(np.any(own & fleet.online))
