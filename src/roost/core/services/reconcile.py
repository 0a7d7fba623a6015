"""Reconcile: bring the replicas of a service to its version, its count, and off draining nodes.

Within the limits of the workload: Roost stops none below the floor, and runs at most the count and the surge. Replicas
whose process does not change are updated in place. A replica keeps its index; those beyond the count are surge
replicas, which run while others are replaced.
"""

from typing import NamedTuple

from roost.core.lifecycle.adopt import may_run_unreported
from roost.core.lifecycle.restarts import may_still_run
from roost.core.lifecycle.retention import drop_instance
from roost.core.lifecycle.update import roll_back_to, update_in_place
from roost.core.services.rollout import advance, cap_of, progress_deadline_ms
from roost.core.state.outcome import Step
from roost.core.state.state import State, in_maintenance
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of, make_instance, shrink
from roost.core.transitions import move, stop
from roost.model.keys import instance_key
from roost.model.reasons import attempts
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.workload import DEFAULT_UPDATE, Workload
from roost.model.states import ALLOCATED, FINISHED, InstanceState, PoolStatus, RolloutState, WorkloadKind

REPLICAS_PER_MS = 20  # a look at 20 replicas takes some 10 us: looking is a hundredth of the time at most
NOT_REPLACED = (InstanceState.SUCCEEDED, InstanceState.CANCELLED)  # replicas that ended so do not count


class ReplicaCounts(NamedTuple):
    replicas: list[Instance]
    available: set[int]  # indexes; only ever asked for members
    available_at_ms: list[int]  # when others will be available, if they stay ready
    reasons: dict[int, Reason]  # index -> why it has to go from where it is, or be made anew
    done: int  # how many of the present version are available, or over for good, of those that count


class DisruptionBudget:
    """How many replicas may go: of those that are available, and of all that are ready."""

    def __init__(self, status: ReplicaCounts, floor: int) -> None:
        self._available = status.available
        self._left = len(status.available) - floor
        self._left_ready = self._left + len(status.available_at_ms)

    def allows(self, instance: Instance) -> bool:
        """Whether a replica can go; it is counted as gone then. One that is not ready always can."""
        if not instance.ready_since_ms:
            return True
        counts = instance.index in self._available
        if (self._left if counts else self._left_ready) <= 0:
            return False
        self._left -= counts
        self._left_ready -= 1
        return True


def reconcile(state: State, out: Step, now: int) -> None:
    """Reconcile every service that has changed. Large ones are not looked at in every pass."""
    if not state.dirty_services or in_maintenance(state):
        return
    keys, state.dirty_services = list(state.dirty_services), {}
    for key in keys:
        workload = state.workloads.get(key)
        if workload is None or workload.finished_ms or workload.policy.kind == WorkloadKind.JOB:
            if workload is not None and workload.policy.kind != WorkloadKind.JOB:
                _reconcile_one(state, out, workload, now)  # the last to end may be a surge replica
            state.reconciling.pop(key, None)
            continue
        due_ms = state.reconciling.get(key, 0) + workload.count // REPLICAS_PER_MS
        if due_ms > now:
            state.at(due_ms, TimerKind.RECONCILE, key)
            continue
        state.reconciling[key] = now
        _reconcile_one(state, out, workload, now)
        state.dirty_services.pop(key, None)  # what it did itself


def _reconcile_one(state: State, out: Step, workload: Workload, now: int) -> None:
    update = workload.policy.update or DEFAULT_UPDATE
    if workload.unstarted_end_state or workload.finished_ms:  # it is being stopped: only forget surge replicas
        replica_counts = _count_replicas(state, workload, instances_of(state, workload), now)
        _scale_down(state, out, workload, replica_counts, 0, DisruptionBudget(replica_counts, 0), now)
        return
    replica_counts = _count_replicas(state, workload, update_in_place(state, workload, now), now)
    back = advance(state, workload, replica_counts.done, now)
    if back is not None:
        _reconcile_one(state, out, roll_back_to(state, out, workload, *back, now), now)  # it is not rolled back again
        return
    cap = cap_of(workload)  # how far it may go has changed with how far it came
    floor = workload.count - _ended(replica_counts, workload) - update.unavailable_of(workload.count)
    margin = DisruptionBudget(replica_counts, floor)
    waiting = 0  # how many have to go and may not yet
    for instance in replica_counts.replicas:
        reason = replica_counts.reasons.get(instance.index)
        if reason is None or (instance.version != workload.version and instance.index >= cap):
            continue
        if margin.allows(instance):
            _replace(state, out, workload, instance, reason, now)
        else:
            waiting += 1
    wanted = 0
    # A surge replica of an earlier server may still run unreported; then only the floor makes room.
    is_rolling = workload.rollout is not None and workload.rollout.state == RolloutState.ROLLING
    is_rolling = is_rolling and workload.version > 1  # nothing stands in for what never ran
    if (waiting or is_rolling) and not may_run_unreported(state, workload):
        own = [instance.index for instance in replica_counts.replicas if instance.index < workload.count]
        unavailable = sum(index not in replica_counts.available for index in own)
        wanted = min(update.surge_of(workload.count), waiting + unavailable)
    _scale_down(state, out, workload, replica_counts, wanted, margin if not waiting else None, now)
    _add_surge(state, workload, wanted, now)
    shrink(state, workload)  # an adopted service may have counted indexes that no agent reported
    _check_again(state, workload, replica_counts, now)


def _count_replicas(state: State, workload: Workload, replicas: list[Instance], now: int) -> ReplicaCounts:
    healthy_after_ms = (workload.policy.update or DEFAULT_UPDATE).healthy_after_ms
    version, count, cap = workload.version, workload.count, cap_of(workload)
    available: set[int] = set()
    soon_ms: list[int] = []
    reasons: dict[int, Reason] = {}
    leave: dict[str, Reason | None] = {}  # of each node, asked once
    done = 0
    for instance in replicas:
        index = instance.index
        if instance.ready_since_ms:
            is_new = instance.version == version  # earlier versions were healthy
            when_ms = instance.ready_since_ms + (healthy_after_ms if is_new else 0)
            if when_ms <= now:
                available.add(index)
            else:
                soon_ms.append(when_ms)
        if index >= count or instance.state == InstanceState.STOPPING:
            continue
        if instance.version == version:
            done += index in available or instance.state in FINISHED
        elif may_still_run(state, instance):
            done += 1  # its node is out of touch
            continue
        elif index < cap:
            reasons[index] = attempts.UpdatedToVersion(version)
            continue
        if instance.state in ALLOCATED:
            if instance.node not in leave:
                leave[instance.node] = eviction_reason(state, instance.node)
            reason = leave[instance.node]
            if reason is not None:
                reasons[index] = reason
    return ReplicaCounts(replicas, available, soon_ms, reasons, done)


def eviction_reason(state: State, name: str) -> Reason | None:
    node = state.nodes[name]
    if node.draining:
        return attempts.NodeDraining(name)
    pool = state.pools.get(node.facts.pool)
    if pool is not None and pool.status == PoolStatus.DRAINING:
        return attempts.PoolDraining(pool.name, pool.reason)
    return None


def _replace(state: State, out: Step, workload: Workload, instance: Instance, reason: Reason, now: int) -> None:
    """Stop a replica so that it starts again, elsewhere or as the new version; a pending one changes at once."""
    if instance.state in ALLOCATED:
        stop(state, out, instance, reason, now, requeue=True)
        return
    if instance.state in FINISHED:
        move(state, out, instance, InstanceState.QUEUED, reason, now)
        instance.node, instance.finished_ms = "", 0
    instance.version = workload.version
    instance.failures = instance.losses = 0
    adopted_until_ms = state.adoption_deadline_ms() if workload.adopted else 0
    instance.not_before_ms = adopted_until_ms if adopted_until_ms > now else 0
    state.touch_instance(instance)
    if instance.not_before_ms:  # an agent that has not registered yet may be running a later attempt
        state.at(instance.not_before_ms, TimerKind.READY, instance.key)
    else:
        state.queue.add_requeued(workload, instance.index)


def _ended(status: ReplicaCounts, workload: Workload) -> int:
    """Replicas that do not count: their work is done, or a user stopped them."""
    return sum(
        instance.state in NOT_REPLACED and instance.index < workload.count and instance.index not in status.reasons
        for instance in status.replicas
    )


def _add_surge(state: State, workload: Workload, wanted: int, now: int) -> None:
    if wanted:
        for index in range(state.placed_count(workload), workload.count):  # surge replicas come behind them
            make_instance(state, workload, index, attempts.SUBMITTED, now)
    for index in range(workload.count, workload.count + wanted):
        if instance_key(workload.key, index) not in state.instances:
            make_instance(state, workload, index, attempts.SurgeReplica(), now)


def _scale_down(
    state: State,
    out: Step,
    workload: Workload,
    status: ReplicaCounts,
    wanted: int,
    margin: DisruptionBudget | None,
    now: int,
) -> None:
    """Stop surplus replicas beyond the count, the last ones first; forget finished ones."""
    for instance in reversed([instance for instance in status.replicas if instance.index >= workload.count]):
        if instance.index < workload.count + wanted and instance.version == workload.version:
            if instance.state not in FINISHED:
                continue
        if instance.state in ALLOCATED and instance.state != InstanceState.STOPPING:
            if instance.ready_since_ms and (margin is None or not margin.allows(instance)):
                continue
            stop(state, out, instance, attempts.ScaledDown(workload.count), now)
        elif instance.state == InstanceState.STOPPING and instance.requeue_after_stop:
            instance.requeue_after_stop = False
            state.touch_instance(instance)
        elif instance.state == InstanceState.QUEUED:
            move(state, out, instance, InstanceState.CANCELLED, attempts.ScaledDown(workload.count), now)
        if instance.state in FINISHED and not may_still_run(state, instance):
            _forget(state, out, workload, instance)


def _forget(state: State, out: Step, workload: Workload, instance: Instance) -> None:
    progress = state.progress_of(workload)
    progress.counts[instance.state] -= 1
    if workload.finished_ms:
        state.finished_instances -= 1
    if instance.attempt > workload.attempts_gone:
        workload.attempts_gone = instance.attempt
        state.touch_workload(workload)
    del state.instances[instance.key]
    drop_instance(state, out, instance)
    shrink(state, workload)


def _may_still_finish(workload: Workload, status: ReplicaCounts) -> bool:
    failed = workload.rollout is not None and workload.rollout.state == RolloutState.FAILED
    return failed and all(instance.version == workload.version for instance in status.replicas)


def _check_again(state: State, workload: Workload, status: ReplicaCounts, now: int) -> None:
    """Stop watching a service that is done; set a timer for replicas that become available later."""
    rollout = workload.rollout
    is_going = rollout is not None and (rollout.is_going or _may_still_finish(workload, status))
    if not status.reasons and state.placed_count(workload) <= workload.count and not is_going:
        state.reconciling.pop(workload.key, None)
        return
    soon_ms = status.available_at_ms
    if rollout is not None and rollout.state == RolloutState.ROLLING:
        soon_ms = [*soon_ms, progress_deadline_ms(state, workload, rollout, workload.policy.update or DEFAULT_UPDATE)]
    if soon_ms:
        state.at(max(min(soon_ms), now + 1), TimerKind.RECONCILE, workload.key)
