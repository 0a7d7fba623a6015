"""What is due: leases, limits on waiting, pauses before a retry, drain deadlines, retention."""

from collections.abc import Callable
from heapq import heappop

from roost.core.adopt import complete
from roost.core.ahead import RECALL_MS
from roost.core.cron import tick
from roost.core.drain import empty_node, forget_node
from roost.core.effects import Step
from roost.core.flaky import look_at_flaky
from roost.core.lose import lose_node
from roost.core.maintain import fall_silent, look_at_maintenance, postpone
from roost.core.move import finish_if_over, move, stop
from roost.core.operate import frozen
from roost.core.pools import look_at_pool
from roost.core.retry import lateness, too_late
from roost.core.settings import look_at_reservation
from roost.core.state import GONE_AFTER_MS, State, waiting_since_ms
from roost.core.sweep import forget
from roost.model.instance import Instance
from roost.model.workload import Workload


def expire(state: State, out: Step, now: int) -> None:
    """Wake everything whose time has come. A timer that has lost its meaning does nothing."""
    while state.timers and state.timers[0][0] <= now:
        timer = heappop(state.timers)
        if not postpone(state, timer):
            WAKERS[timer[1]](state, out, timer[2], now)


def _lease(state: State, out: Step, key: str, now: int) -> None:
    state.lease_timers.discard(key)
    node = state.nodes.get(key)
    if node is None or node.status == "lost":
        return
    if state.contacts[key].lease_until_ms > now:
        state.watch_lease(key)
    elif frozen(state):
        fall_silent(state, out, node, now)
    else:
        lose_node(state, out, node, f"not heard for {state.settings.lease_ms} ms", now)


def _queue(state: State, out: Step, key: str, now: int) -> None:
    workload = state.workloads.get(key)
    if workload is None or workload.finished_ms or workload.policy.schedule:
        return
    queue_timeout = workload.policy.queue_timeout_ms
    if too_late(workload, now):
        _expire_waiting(state, out, workload, lateness(workload, now), now, again=True)
    elif queue_timeout and waiting_since_ms(workload) + queue_timeout <= now:
        _expire_waiting(state, out, workload, "waited for its queue timeout", now, again=False)


def _expire_waiting(state: State, out: Step, workload: Workload, cause: str, now: int, *, again: bool) -> None:
    waits_for_others = bool(workload.waits) and state.begun(workload) < workload.count
    if state.has_fresh(workload) or (waits_for_others and again and not workload.rest):
        workload.rest, workload.cause = "expired", cause
        state.touch_workload(workload)
    for index in range(state.begun(workload)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is not None and instance.state == "queued" and (again or _is_overdue(workload, instance, now)):
            move(state, out, instance, "expired", cause, now)
    finish_if_over(state, workload, now)


def _is_overdue(workload: Workload, instance: Instance, now: int) -> bool:
    """Whether an instance that never ran has waited for room too long: it may have been released later than others."""
    return not instance.attempt and not instance.waits and instance.since_ms + workload.policy.queue_timeout_ms <= now


def _ready(state: State, out: Step, key: str, now: int) -> None:
    instance = state.instances.get(key)
    if instance is not None and instance.state == "queued" and instance.ready_ms <= now:
        state.queue.add_again(state.spec_of(instance), instance.index)


def _drain(state: State, out: Step, key: str, now: int) -> None:
    node = state.nodes.get(key)
    if node is not None and node.draining and 0 < node.drain_until_ms <= now:
        empty_node(state, out, node, now)


def _sweep(state: State, out: Step, key: str, now: int) -> None:
    workload = state.workloads.get(key)
    if workload is not None and workload.finished_ms and workload.finished_ms + workload.policy.keep_ms <= now:
        forget(state, out, workload)


def _gone(state: State, out: Step, key: str, now: int) -> None:
    node = state.nodes.get(key)
    if node is None or node.status != "lost":
        return
    if state.held[key]:
        state.at(now + GONE_AFTER_MS, "gone", key)
    elif state.contacts[key].lease_until_ms + GONE_AFTER_MS <= now:  # otherwise it was back, and lost again since
        forget_node(state, out, node)


def _adopted(state: State, out: Step, key: str, now: int) -> None:
    workload = state.workloads.get(key)
    if workload is not None:
        complete(state, workload)


def _look(state: State, out: Step, key: str, now: int) -> None:
    state.look_at_ms = 0
    state.queue.look_again()


def _recall(state: State, out: Step, key: str, now: int) -> None:
    state.recalls.discard(key)
    behind = [each for _, each in sorted(state.held.get(key, {}).items()) if each.behind]
    for instance in behind:
        if instance.state in ("placed", "starting") and instance.since_ms + RECALL_MS <= now:
            stop(state, out, instance, "what it stood behind takes too long", now, moving=True)
    if behind and key not in state.recalls:
        state.recalls.add(key)
        state.at(now + RECALL_MS, "recall", key)


def _settle(state: State, out: Step, key: str, now: int) -> None:
    if key in state.restless:
        state.unsettled[key] = None


def _after(state: State, out: Step, key: str, now: int) -> None:
    state.tell_dependants(key)


def _shorter(state: State, out: Step, key: str, now: int) -> None:
    state.meta.lease_ms = state.settings.lease_ms
    state.touch_meta()


WAKERS: dict[str, Callable[[State, Step, str, int], None]] = {
    "lease": _lease,
    "queue": _queue,
    "ready": _ready,
    "drain": _drain,
    "sweep": _sweep,
    "gone": _gone,
    "adopted": _adopted,
    "shorter": _shorter,
    "settle": _settle,
    "after": _after,
    "cron": tick,
    "look": _look,
    "recall": _recall,
    "reservation": look_at_reservation,
    "maintenance": look_at_maintenance,
    "pool": look_at_pool,
    "flaky": look_at_flaky,
}
