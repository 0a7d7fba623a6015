"""Pools: their settings, and what becomes of work when a pool fails, is drained, or is ready again."""

from collections.abc import Iterable
from sys import intern

from msgspec.structs import replace

from roost.core.lifecycle.restarts import attempts_on
from roost.core.lifecycle.stop import cancel_one, cancel_rest
from roost.core.nodes.drain import mark_node_services_dirty
from roost.core.placement.strategies import check_strategy
from roost.core.queue.home import stays
from roost.core.state.outcome import Step
from roost.core.state.state import State, in_maintenance
from roost.core.state.timers import TimerKind
from roost.core.state.versions import instances_of
from roost.core.transitions import finish_if_over, restate, stop
from roost.core.watch import watch_pool
from roost.model import limits
from roost.model.errors import Conflict, Invalid, NotFound
from roost.model.events import MarkPool, SetPool
from roost.model.reasons.attempts import PoolDraining, PoolFailed
from roost.model.records.instance import Instance
from roost.model.records.node import Node
from roost.model.records.project import Pool
from roost.model.records.workload import Workload
from roost.model.spec.units import show_duration
from roost.model.states import ABSENT, ALLOCATED, FINISHED, InstanceState, PoolStatus, WorkloadKind


def set_pool(state: State, out: Step, event: SetPool, now: int) -> None:
    """Change the settings of a pool. Its status stays."""
    pool, existing = event.pool, state.pools.get(event.pool.name)
    _check(state, pool)
    if existing is not None:
        pool = replace(pool, status=existing.status, reason=existing.reason, failed_by=existing.failed_by)
    _store(state, pool)
    out.reply(event.request, pool.name)


def mark_pool(state: State, out: Step, event: MarkPool, now: int) -> None:
    existing = state.pools.get(event.pool)
    if existing is None and not _has_nodes(state, event.pool):
        raise NotFound(f"there is no pool {event.pool:.100}: it has neither settings nor nodes")
    _check_number(state, event.pool)
    if event.status not in set(PoolStatus):
        raise Invalid("status", f"this is {', '.join(PoolStatus)}")
    is_ready = event.status == PoolStatus.READY
    reason, by = ("", "") if is_ready else (event.reason, "operator")
    pool = replace(existing or Pool(event.pool), status=event.status, reason=reason, failed_by=by)
    _store(state, pool)
    enforce(state, out, pool, now)
    for node in state.nodes.values() if is_ready else ():
        if node.facts.pool == pool.name:
            mark_node_services_dirty(state, node.name)  # replicas that were about to leave may stay
    out.reply(event.request, pool.name)


def check_pool(state: State, out: Step, name: str, now: int) -> None:
    pool, since_ms = state.pools.get(name), state.silent_pools.get(name)
    if pool is None or since_ms is None or not pool.fail_after_ms or pool.status != PoolStatus.READY:
        return
    if since_ms + pool.fail_after_ms > now:
        state.at(since_ms + pool.fail_after_ms, TimerKind.POOL, name)
        return
    message = f"no node of it was in touch for {show_duration(pool.fail_after_ms)}"
    pool = replace(pool, status=PoolStatus.FAILED, reason=message, failed_by="silence")
    _store(state, pool)
    enforce(state, out, pool, now)


def node_came(state: State, out: Step, node: Node, now: int) -> None:
    """A node is back: a pool that failed by silence is ready; a pool that an operator failed is emptied again."""
    pool = state.pools.get(node.facts.pool)
    if pool is None or pool.status != PoolStatus.FAILED:
        return
    if pool.failed_by == "silence":
        _store(state, replace(pool, status=PoolStatus.READY, reason="", failed_by=""))
    elif not in_maintenance(state):
        _move_instance(state, out, pool, node, now)


def enforce(state: State, out: Step, pool: Pool, now: int) -> None:
    """Apply the status of a pool to its running and pending work. Services leave a draining pool within their limits
    (`reconcile`); its jobs may finish."""
    if pool.status == PoolStatus.READY or in_maintenance(state):
        return
    nodes = [node for node in state.nodes.values() if node.facts.pool == pool.name]
    if pool.status == PoolStatus.DRAINING:
        for node in nodes:
            _mark_services_dirty(state, out, pool, node, now)
        return
    for node in nodes:
        _move_instance(state, out, pool, node, now)
    for workload in list(state.workloads.values()):
        ask = workload.policy.ask
        is_waiting = not workload.finished_ms and not workload.policy.schedule and pool.name in ask.pools
        if is_waiting and failed_pools(state, ask.pools):
            _move_pending(state, out, pool, workload, now)


def _move_instance(state: State, out: Step, pool: Pool, node: Node, now: int) -> None:
    """Move or cancel the attempts on a node of a failed pool. If the node is out of touch, its lease says when; a
    pinned attempt on a lost node cannot be moved."""
    for instance in attempts_on(state, node.name, youngest_first=True):
        if instance.token not in state.allocated[node.name]:
            continue
        if pool.when_failed == "cancel":
            _cancel(state, out, pool, instance, now)
        elif instance.state != InstanceState.STOPPING and node.status not in ABSENT and not stays(state, instance):
            stop(state, out, instance, _failed(pool, "moved"), now, requeue=True)


def _cancel(state: State, out: Step, pool: Pool, instance: Instance, now: int) -> None:
    reason = _failed(pool, "cancelled")
    workload = state.workloads[instance.workload]
    cancel_one(state, out, instance, reason, now)
    if not _lives_elsewhere(state, workload):
        cancel_rest(state, workload, reason, now)
        finish_if_over(state, workload, now)


def _lives_elsewhere(state: State, workload: Workload) -> bool:
    """Whether a replica of a service stays, or a job may yet start."""
    if workload.policy.kind == WorkloadKind.JOB:
        return True
    progress = state.progress_of(workload)
    stopping = sum(
        instance.state == InstanceState.STOPPING and not instance.requeue_after_stop
        for instance in instances_of(state, workload)
    )
    alive = sum(number for count, number in progress.counts.items() if count not in FINISHED)
    return alive > stopping or state.has_unstarted(workload)


def _move_pending(state: State, out: Step, pool: Pool, workload: Workload, now: int) -> None:
    is_cancelled = pool.when_failed == "cancel"
    reason = _failed(pool, "cancelled" if is_cancelled else "fallback" if pool.fallback else "waiting")
    if is_cancelled:
        cancel_rest(state, workload, reason, now)
    for instance in instances_of(state, workload):
        if instance.state != InstanceState.QUEUED:
            continue
        if is_cancelled:
            cancel_one(state, out, instance, reason, now)
        else:
            restate(state, instance, reason, now)
    if is_cancelled:
        finish_if_over(state, workload, now)


def _mark_services_dirty(state: State, out: Step, pool: Pool, node: Node, now: int) -> None:
    """Services leave within their limits, virtual machines at once or not. Prefilled attempts are taken back."""
    for instance in attempts_on(state, node.name, youngest_first=True):
        if state.spec_of(instance).policy.kind == WorkloadKind.SERVICE:
            state.mark_dirty(instance.workload)
            continue
        is_vm = state.spec_of(instance).policy.kind == WorkloadKind.VM and not stays(state, instance)
        leaves = instance.prefilled_behind or is_vm
        if leaves and instance.state in ALLOCATED and instance.state != InstanceState.STOPPING:
            stop(state, out, instance, PoolDraining(pool.name, pool.reason), now, requeue=True)


def _store(state: State, pool: Pool) -> None:
    pool = replace(pool, status=PoolStatus(pool.status), when_failed=intern(pool.when_failed))  # defaults are left out
    state.pools[pool.name] = pool
    state.dirty["pool", pool.name] = pool
    state.apply_pool(pool.name)
    state.silent_pools.pop(pool.name, None)
    if _has_nodes(state, pool.name):
        watch_pool(state, pool.name)
    state.queue.recheck_all()


def _failed(pool: Pool, outcome: str) -> PoolFailed:
    fallback = pool.fallback if outcome == "fallback" else ""
    if pool.failed_by == "silence":
        return PoolFailed(pool.name, outcome, silent_ms=pool.fail_after_ms, fallback=fallback)
    return PoolFailed(pool.name, outcome, pool.reason, fallback=fallback)


def _has_nodes(state: State, name: str) -> bool:
    return any(node.facts.pool == name for node in state.nodes.values())


def _check_number(state: State, name: str) -> None:
    if name not in state.pools and len(state.pools) >= limits.PROJECTS_MAX:
        raise Conflict(f"there are {limits.PROJECTS_MAX:,} pools already", code="too_many")


def _check(state: State, pool: Pool) -> None:
    check_strategy(pool.strategy, "strategy")
    if pool.fallback and pool.fallback not in state.pools and not _has_nodes(state, pool.fallback):
        raise Invalid("fallback", f"there is no pool {pool.fallback}: it has neither settings nor nodes")
    chain = [pool.name]
    name = pool.fallback
    while name and name not in chain:
        chain.append(name)
        name = state.pools[name].fallback if name in state.pools else ""
    if name:
        answer = " → ".join([*chain, name])
        raise Invalid("fallback", f"pools would stand in for each other in a circle: {answer}", code="fallback_cycle")
    _check_number(state, pool.name)


def failed_pools(state: State, names: Iterable[str]) -> list[Pool]:
    """Empty unless all of them have failed."""
    pools = [state.pools.get(name) for name in names]
    failed = [pool for pool in pools if pool is not None and pool.status == PoolStatus.FAILED]
    return failed if len(failed) == len(pools) else []
