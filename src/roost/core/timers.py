"""What each kind of timer does when it is due: leases, queue timeouts, back-off, drain deadlines, retention."""

from collections.abc import Callable, Container
from heapq import heapify, heappop
from typing import NamedTuple

from roost.core.lifecycle.adopt import complete
from roost.core.lifecycle.restarts import lateness, lose_node, too_late
from roost.core.lifecycle.schedules import tick
from roost.core.nodes.drain import forget_node, move_away
from roost.core.nodes.flaky import check_flaky
from roost.core.nodes.maintenance import check_maintenance, mark_out_of_touch
from roost.core.nodes.pools import check_pool
from roost.core.queue.projects import check_reservation
from roost.core.state.outcome import Step
from roost.core.state.state import GONE_AFTER_MS, State, in_maintenance
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.core.transitions import RETRACT_AFTER_MS, finish_if_over, move, stop
from roost.core.watch import waiting_since_ms
from roost.model.reasons.attempts import PrefillTimeout, QueueTimeout
from roost.model.reasons.nodes import HeartbeatsMissing
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.states import ABSENT, InstanceState, WorkloadKind

RETURNS_PER_LEASE = 4  # nodes return to a new leader without a pause that is as long as this part of a lease
TIMERS_SPARE = 10_000  # timers without an owner that may stay in the heap; 200 bytes each


class Timer(NamedTuple):
    fire: Callable[[State, Step, str, int], None]
    owner: str  # the part of the state that has its key; empty: none
    in_maintenance: bool = False  # False: it is postponed until the maintenance has ended


def expire(state: State, out: Step, now: int) -> None:
    """Fire the timers that are due, the oldest first. A timer that has lost its meaning does nothing."""
    most = out.limit(state.settings.step_units)
    while state.timers and state.timers[0][0] <= now and out.work < most:
        due = heappop(state.timers)
        out.work += 1
        timer = TIMERS[due[1]]
        if timer.in_maintenance or not in_maintenance(state):
            timer.fire(state, out, due[2], now)
        else:
            state.postponed.append(due)


def sweep_timers(state: State) -> None:
    """Drop the timers of removed records: a job with a retention of a week may be removed within minutes."""
    if len(state.timers) + len(state.postponed) <= state.timers_limit:
        return
    owners: dict[TimerKind, Container[str]] = {
        kind: getattr(state, timer.owner) for kind, timer in TIMERS.items() if timer.owner
    }

    def still(timers: list[tuple[int, TimerKind, str]]) -> list[tuple[int, TimerKind, str]]:
        return [timer for timer in timers if timer[1] not in owners or timer[2] in owners[timer[1]]]

    state.timers, state.postponed = still(state.timers), still(state.postponed)
    heapify(state.timers)
    state.timers_limit = 2 * (len(state.timers) + len(state.postponed)) + TIMERS_SPARE
    state.lease_timers.intersection_update(state.nodes)
    state.retract_timers.intersection_update(state.nodes)


def _lease(state: State, out: Step, key: str, now: int) -> None:
    state.lease_timers.discard(key)
    node = state.nodes.get(key)
    if node is None or node.status in ABSENT:
        return
    contact = state.liveness[key]
    if key in state.awaited:  # while others return, its turn may still come: a server takes in so many per second
        contact.lease_until_ms = max(contact.lease_until_ms, state.returned_ms + state.lease_ms // RETURNS_PER_LEASE)
    if contact.lease_until_ms > now:
        state.watch_lease(key)
    elif in_maintenance(state):
        mark_out_of_touch(state, out, node, now)
    else:
        lose_node(state, out, node, HeartbeatsMissing(state.lease_ms), now)


def _queue(state: State, out: Step, key: str, now: int) -> None:
    workload = state.workloads.get(key)
    if workload is None or workload.finished_ms or workload.policy.schedule:
        return
    queue_timeout = workload.policy.queue_timeout_ms
    if too_late(workload, now):
        _expire_pending(state, out, workload, lateness(workload, now), now, requeued=True)
    elif queue_timeout and waiting_since_ms(workload) + queue_timeout <= now:
        _expire_pending(state, out, workload, QueueTimeout(queue_timeout), now, requeued=False)


def _expire_pending(state: State, out: Step, workload: Workload, reason: Reason, now: int, *, requeued: bool) -> None:
    is_dependent = bool(workload.pending_conditions) and state.placed_count(workload) < workload.count
    if state.has_unstarted(workload) or (is_dependent and requeued and not workload.unstarted_end_state):
        workload.unstarted_end_state, workload.reason = InstanceState.EXPIRED, reason
        state.touch_workload(workload)
    for instance in instances_of(state, workload):
        if instance.state == InstanceState.QUEUED and (requeued or _is_overdue(workload, instance, now)):
            move(state, out, instance, InstanceState.EXPIRED, reason, now)
    finish_if_over(state, workload, now)


def _is_overdue(workload: Workload, instance: Instance, now: int) -> bool:
    return (
        not instance.attempt
        and not instance.blocked_on_dependency
        and instance.since_ms + workload.policy.queue_timeout_ms <= now
    )


def _ready(state: State, out: Step, key: str, now: int) -> None:
    instance = state.instances.get(key)
    if instance is not None and instance.state == InstanceState.QUEUED and instance.not_before_ms <= now:
        state.queue.add_requeued(state.spec_of(instance), instance.index)


def _drain(state: State, out: Step, key: str, now: int) -> None:
    node = state.nodes.get(key)
    if node is not None and node.draining and 0 < node.drain_until_ms <= now:
        move_away(state, out, node, now, is_due=True)


def _sweep(state: State, out: Step, key: str, now: int) -> None:
    workload = state.workloads.get(key)
    if workload is not None and workload.finished_ms and workload.finished_ms + workload.policy.retention_ms <= now:
        out.retired.append(workload)


def _gone(state: State, out: Step, key: str, now: int) -> None:
    node = state.nodes.get(key)
    if node is None or node.status not in ABSENT:
        return
    if state.allocated[key]:
        state.at(now + GONE_AFTER_MS, TimerKind.GONE, key)
    elif state.liveness[key].lease_until_ms + GONE_AFTER_MS <= now:  # otherwise it came back and was lost again
        forget_node(state, out, node)


def _adopted(state: State, out: Step, key: str, now: int) -> None:
    workload = state.workloads.get(key)
    if workload is not None:
        complete(state, workload)
        state.note_owner(workload)  # no agent has reported its owner meanwhile
        if workload.policy.kind == WorkloadKind.SERVICE:
            state.mark_dirty(key)  # an update may have waited for surge replicas


def _check_queue(state: State, out: Step, key: str, now: int) -> None:
    state.queue_check_ms = 0
    state.queue.recheck_all()


def _retract(state: State, out: Step, key: str, now: int) -> None:
    state.retract_timers.discard(key)
    behind = [instance for _, instance in sorted(state.allocated.get(key, {}).items()) if instance.prefilled_behind]
    for instance in behind:
        if (
            instance.state in (InstanceState.PLACED, InstanceState.STARTING)
            and instance.since_ms + RETRACT_AFTER_MS <= now
        ):
            stop(state, out, instance, PrefillTimeout(), now, requeue=True)
    if behind and key not in state.retract_timers:
        state.retract_timers.add(key)
        state.at(now + RETRACT_AFTER_MS, TimerKind.RETRACT, key)


def _reconcile(state: State, out: Step, key: str, now: int) -> None:
    if key in state.reconciling:
        state.dirty_services[key] = None


def _shorter(state: State, out: Step, key: str, now: int) -> None:
    state.meta.lease_ms = state.lease_ms
    state.touch_meta()


TIMERS: dict[TimerKind, Timer] = {
    TimerKind.LEASE: Timer(_lease, "nodes", in_maintenance=True),
    TimerKind.QUEUE: Timer(_queue, "workloads"),
    TimerKind.READY: Timer(_ready, "instances", in_maintenance=True),
    TimerKind.DRAIN: Timer(_drain, "nodes"),
    TimerKind.SWEEP: Timer(_sweep, "workloads", in_maintenance=True),
    TimerKind.GONE: Timer(_gone, "nodes", in_maintenance=True),
    TimerKind.ADOPTED: Timer(_adopted, "workloads", in_maintenance=True),
    TimerKind.SHORTER: Timer(_shorter, "", in_maintenance=True),
    TimerKind.RECONCILE: Timer(_reconcile, "reconciling"),
    TimerKind.AFTER: Timer(lambda state, out, key, now: state.notify_dependents(key), "workloads", in_maintenance=True),
    TimerKind.CRON: Timer(tick, "workloads"),
    TimerKind.CHECK_QUEUE: Timer(_check_queue, "", in_maintenance=True),
    TimerKind.RETRACT: Timer(_retract, "nodes"),
    TimerKind.RESERVATION: Timer(check_reservation, "reservations"),
    TimerKind.MAINTENANCE: Timer(check_maintenance, "", in_maintenance=True),
    TimerKind.POOL: Timer(check_pool, "pools"),
    TimerKind.FLAKY: Timer(check_flaky, "nodes", in_maintenance=True),
}
