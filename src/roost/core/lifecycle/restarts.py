"""What happens after an attempt: its instance has finished or is tried again, by cause and by policy."""

import msgspec

from roost.core.lifecycle.power import power_of_next
from roost.core.queue.gang import members
from roost.core.queue.home import home_class
from roost.core.state.outcome import Step
from roost.core.state.queue import start_by_ms
from roost.core.state.state import GONE_AFTER_MS, State, in_maintenance
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.core.transitions import move, refresh_status, restate, stop
from roost.model.reasons import reason as reasons
from roost.model.reasons.attempts import (
    DeadlinePassed,
    DeadlineUnreachable,
    GangRestart,
    InputsFailed,
    PinnedToLostNode,
)
from roost.model.reasons.nodes import NodeLeft
from roost.model.reasons.reason import Reason
from roost.model.reasons.subjects import InstanceRef
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.workload import DEFAULT_RESTART, Workload
from roost.model.states import ABSENT, ALLOCATED, InstanceState, NodeStatus, RestartWhen, WhenLost, WorkloadKind

CRASH_LOOP = 5  # ends in a row, none of them after a steady run
AT_ONCE_SHARE = 5  # the attempts of a lost node are lost at once if that is less than a fifth of a step
LOSS_UNITS = 2  # of work
INPUTS_PAUSE_MS, INPUTS_PAUSE_MS_MAX = 5_000, 60_000  # before inputs are fetched again: a full disk takes its time
STEADY_MS = 60_000  # a service that ran this long has recovered: the next pause is the first again


def ended(
    state: State, out: Step, instance: Instance, ending: InstanceState, reason: Reason, now: int, delay_ms: int = 0
) -> None:  # fmt: skip
    """An attempt ended by itself: `ending` is succeeded, failed or timed_out. Another one waits for `delay_ms`."""
    workload = state.spec_of(instance)
    policy = workload.policy
    if policy.kind == WorkloadKind.SERVICE:
        _restart(state, out, instance, ending, reason, now, delay_ms)
    elif ending != InstanceState.SUCCEEDED and _tries_again(workload, instance, ending, reason, now):
        if isinstance(reason, InputsFailed):
            delay_ms = max(delay_ms, min(INPUTS_PAUSE_MS << instance.failures, INPUTS_PAUSE_MS_MAX))
        instance.failures += 1
        again = reasons.AttemptRetried(reason, instance.failures + 1, policy.retries_max + 1)
        requeue(state, out, instance, again, now, delay_ms)
    else:
        move(state, out, instance, ending, reason, now)


def lost(state: State, out: Step, instance: Instance, reason: Reason, now: int) -> None:
    workload = state.spec_of(instance)
    policy = workload.policy
    cancelled = instance.state == InstanceState.STOPPING and not instance.requeue_after_stop
    move(state, out, instance, InstanceState.LOST, reason, now)
    instance.losses += 1
    if cancelled:
        move(state, out, instance, InstanceState.CANCELLED, reason, now)
    elif policy.when_lost == WhenLost.FAIL:
        move(state, out, instance, InstanceState.FAILED, reasons.RescheduleDisabled(reason), now)
    elif policy.kind == WorkloadKind.JOB and ("lost" not in policy.retry_on or instance.losses > policy.retries_max):
        move(state, out, instance, InstanceState.FAILED, reasons.RetriesExhausted(reason, policy.retries_max), now)
    else:
        requeue(state, out, instance, reason, now)


def requeue(state: State, out: Step, instance: Instance, reason: Reason, now: int, delay_ms: int = 0) -> None:
    workload = state.workloads[instance.workload]
    if workload.adopted:  # an agent that has not registered yet may be running a later attempt
        delay_ms = max(delay_ms, state.adoption_deadline_ms() - now)
    move(state, out, instance, InstanceState.QUEUED, reason, now)
    if workload.policy.kind != WorkloadKind.SERVICE:
        instance.version = workload.version  # it starts again as it is wanted now
    elif instance.version != workload.version:
        state.mark_dirty(workload.key)  # `reconcile` decides which it is to be
    instance.power = power_of_next(instance.power, reason)
    if workload.policy.kind == WorkloadKind.VM and instance.started_ms:
        instance.home = instance.node
    spec = state.spec_of(instance)
    if spec.policy.gang and not in_maintenance(state):
        regroup(state, out, spec, instance, now)
    instance.node = ""
    instance.finished_ms = 0
    instance.not_before_ms = now + delay_ms if delay_ms else 0
    if too_late(spec, now):
        move(state, out, instance, InstanceState.EXPIRED, lateness(spec, now), now)
    elif delay_ms:
        state.at(instance.not_before_ms, TimerKind.READY, instance.key)
    else:
        state.queue.add_requeued(spec, instance.index, home_class(spec, instance.home))


def may_still_run(state: State, instance: Instance) -> bool:
    """A pinned attempt has no lease: if it was cancelled while its node was out of touch, its end is unknown."""
    policy, node = state.spec_of(instance).policy, state.nodes.get(instance.node)
    is_pinned = policy.fenced and policy.when_lost == WhenLost.PIN
    if instance.state != InstanceState.CANCELLED or node is None or not is_pinned:
        return False
    unconfirmed = instance.exit_code is None and instance.signal is None and instance.attempt > 0
    return unconfirmed and (node.status in ABSENT or instance.token in state.liveness[node.name].orphans)


def regroup(state: State, out: Step, workload: Workload, instance: Instance, now: int) -> None:
    """A gang starts together: stop the other members so that they start again with this one."""
    for member in members(state, workload.policy.gang):
        for other in instances_of(state, member):
            if other.state in ALLOCATED and other.state != InstanceState.STOPPING:
                stop(state, out, other, GangRestart(InstanceRef.of(instance.key)), now, requeue=True)


def too_late(workload: Workload, now: int) -> bool:
    """Whether its deadline can no longer be met: running attempts may finish, but nothing starts."""
    return start_by_ms(workload) <= now


def lateness(workload: Workload, now: int) -> Reason:
    left = start_by_ms(workload) + workload.policy.expected_ms - now
    return DeadlinePassed() if left <= 0 else DeadlineUnreachable(workload.policy.expected_ms, left)


def _restart(
    state: State, out: Step, instance: Instance, ending: InstanceState, reason: Reason, now: int, delay_ms: int
) -> None:  # fmt: skip
    restart = state.spec_of(instance).policy.restart or DEFAULT_RESTART
    may_end = restart.when != RestartWhen.ALWAYS and ending == InstanceState.SUCCEEDED
    if not may_end:
        _count_failure(state, instance)
    if restart.when == RestartWhen.NEVER or may_end:
        move(state, out, instance, ending, reasons.RestartDisabled(reason), now)
        return
    if instance.started_ms and now - instance.started_ms >= STEADY_MS:
        instance.failures = 0
    delay = max(delay_ms, min(restart.pause_ms << min(instance.failures, 20), restart.pause_max_ms))
    instance.failures += 1
    again = reasons.ServiceRestarted(reason, instance.failures, delay, instance.failures >= CRASH_LOOP)
    requeue(state, out, instance, again, now, delay)


def _count_failure(state: State, instance: Instance) -> None:
    workload = state.workloads[instance.workload]
    rollout = workload.rollout
    if rollout is not None and rollout.is_going and instance.version == workload.version:
        workload.rollout = msgspec.structs.replace(rollout, failures=rollout.failures + 1)
        state.touch_workload(workload)
        state.mark_dirty(workload.key)


def _tries_again(workload: Workload, instance: Instance, ending: InstanceState, reason: Reason, now: int) -> bool:
    policy = workload.policy
    if instance.failures >= policy.retries_max or too_late(workload, now):
        return False
    if isinstance(reason, InputsFailed):  # it never began: what its node or the network did is no failure of its own
        return not reason.failure.is_final and bool({"lost", ending}.intersection(policy.retry_on))
    code = f"exit:{instance.exit_code}" if instance.exit_code is not None else ""
    return ending in policy.retry_on or code in policy.retry_on


def attempts_on(state: State, node: str, *, youngest_first: bool = False) -> list[Instance]:
    """The attempts with an allocation on a node, by token. The youngest come first where no prefilled attempt is to
    take the place of a stopped one."""
    held = state.allocated[node]
    return [held[token] for token in sorted(held, reverse=youngest_first)]


def release_orphans(state: State, node: str) -> None:
    orphans = state.liveness[node].orphans
    for allocation in orphans.values():
        state.fleet.take(node, allocation, -1)
    orphans.clear()


def lose_node(state: State, out: Step, node: Node, reason: Reason, now: int) -> None:
    """The lease has ended, or the agent was shut down: the node leaves the fleet, its work runs elsewhere by policy."""
    contact = state.liveness[node.name]
    contact.connected = False
    contact.usage = None  # what was measured before says nothing of a node that is lost
    contact.lease_until_ms = min(contact.lease_until_ms, now)
    absent = NodeStatus.STOPPED if isinstance(reason, NodeLeft) else NodeStatus.LOST
    refresh_status(state, out, node, reason, now, absent=absent)
    release_orphans(state, node.name)
    state.losing[node.name] = None
    attempts = len(state.allocated[node.name])
    if attempts * LOSS_UNITS <= state.settings.step_units // AT_ONCE_SHARE:
        lose_attempts(state, out, node.name, now, attempts)
    state.at(now + GONE_AFTER_MS, TimerKind.GONE, node.name)


def lose_more(state: State, out: Step, now: int) -> None:
    """Go on with the attempts on lost nodes."""
    most = out.limit(state.settings.step_units)
    while state.losing and out.work < most:
        name = next(iter(state.losing))
        if name in state.nodes:
            lose_attempts(state, out, name, now, (most - out.work + 1) // LOSS_UNITS)
        else:
            del state.losing[name]


def lose_attempts(state: State, out: Step, name: str, now: int, most: int) -> None:
    """Declare attempts on a lost node lost, so many at most. Pinned ones stay, and say that their node is lost."""
    last = state.nodes[name].story[-1]
    reason, stays = reasons.NodeLost(name, last.reason), PinnedToLostNode(name, last.at_ms)
    left = [instance for instance in attempts_on(state, name) if not _is_decided(state, instance)]
    for instance in left[:most]:
        if _is_lost_with_node(state, instance):
            lost(state, out, instance, reason, now)
        else:
            restate(state, instance, stays, now)
    out.work += LOSS_UNITS * len(left[:most])
    if len(left) <= most:
        del state.losing[name]


def _is_decided(state: State, instance: Instance) -> bool:
    """A pinned attempt that says so, or is being moved, stays as it is."""
    is_said = isinstance(instance.reason, PinnedToLostNode) or instance.state == InstanceState.STOPPING
    return is_said and not _is_lost_with_node(state, instance)


def _is_lost_with_node(state: State, instance: Instance) -> bool:
    is_pinned = state.spec_of(instance).policy.when_lost == WhenLost.PIN
    return not is_pinned or (instance.state == InstanceState.STOPPING and not instance.requeue_after_stop)
