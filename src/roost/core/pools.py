"""Pools: what their nodes have in common, and what becomes of work when one fails, is emptied, or is well again."""

from sys import intern
from typing import Any

import msgspec

from roost.core.drain import rouse_node
from roost.core.effects import Step
from roost.core.move import finish_if_over, stop, tell
from roost.core.operate import frozen
from roost.core.requests import cancel_one, cancel_rest
from roost.core.silence import watch_pool
from roost.core.state import State
from roost.core.strategies import check_strategy
from roost.core.waits import failed_pools
from roost.model import limits
from roost.model.errors import Conflict, Invalid, NotFound, RoostError
from roost.model.events import MarkPool, SetPool
from roost.model.instance import Instance
from roost.model.node import Node
from roost.model.project import POOL_STATUSES, Pool
from roost.model.states import FINISHED, HOLDING
from roost.model.units import show_duration
from roost.model.workload import Workload


def set_pool(state: State, out: Step, event: SetPool, now: int) -> None:
    """What the nodes of a pool have in common. Whether it has failed or is being emptied stays as it is."""
    pool, known = event.pool, state.pools.get(event.pool.name)
    error = _refusal(state, pool)
    if error is not None:
        out.reply(event.request, error)
        return
    if known is not None:
        pool = _with(pool, status=known.status, reason=known.reason, failed_by=known.failed_by)
    _store(state, pool)
    out.reply(event.request, pool.name)


def mark_pool(state: State, out: Step, event: MarkPool, now: int) -> None:
    """A pool has failed, is to be emptied, or is well again. To say the same again is fine."""
    known = state.pools.get(event.pool)
    if known is None and not _has_nodes(state, event.pool):
        words = f"there is no pool {event.pool:.100}: it has neither settings nor nodes"
        out.reply(event.request, NotFound(words))
        return
    error = _too_many(state, event.pool)
    if error is not None or event.status not in POOL_STATUSES:
        out.reply(event.request, error or Invalid("status", f"this is {', '.join(POOL_STATUSES)}"))
        return
    is_ready = event.status == "ready"
    reason, by = ("", "") if is_ready else (event.reason, "operator")
    pool = _with(known or Pool(event.pool), status=event.status, reason=reason, failed_by=by)
    _store(state, pool)
    enforce(state, out, pool, now)
    for node in state.nodes.values() if is_ready else ():
        if node.facts.pool == pool.name:
            rouse_node(state, node.name)  # whoever was about to leave may stay
    out.reply(event.request, pool.name)


def look_at_pool(state: State, out: Step, name: str, now: int) -> None:
    """Without a node in touch for too long, a pool has failed."""
    pool, since_ms = state.pools.get(name), state.silences.get(name)
    if pool is None or since_ms is None or not pool.fail_after_ms or pool.status != "ready":
        return
    if since_ms + pool.fail_after_ms > now:
        state.at(since_ms + pool.fail_after_ms, "pool", name)
        return
    words = f"no node of it was in touch for {show_duration(pool.fail_after_ms)}"
    pool = _with(pool, status="failed", reason=words, failed_by="silence")
    _store(state, pool)
    enforce(state, out, pool, now)


def node_came(state: State, out: Step, node: Node, now: int) -> None:
    """A node is in touch again: that ends what silence began. What it brings back into a failed pool has to go."""
    pool = state.pools.get(node.facts.pool)
    if pool is None or pool.status != "failed":
        return
    if pool.failed_by == "silence":
        _store(state, _with(pool, status="ready", reason="", failed_by=""))
    elif not frozen(state):
        _send_away(state, out, pool, node, now)


def enforce(state: State, out: Step, pool: Pool, now: int) -> None:
    """Let the status of a pool be felt by what runs there, and by what waits for it. Services leave a pool that is
    being emptied within their limits (`reconcile`); its jobs may finish."""
    if pool.status == "ready" or frozen(state):
        return
    nodes = [node for node in state.nodes.values() if node.facts.pool == pool.name]
    if pool.status == "draining":
        for node in nodes:
            _rouse(state, out, pool, node, now)
        return
    for node in nodes:
        _send_away(state, out, pool, node, now)
    for workload in list(state.workloads.values()):
        ask = workload.policy.ask
        is_waiting = not workload.finished_ms and not workload.policy.schedule and pool.name in ask.pools
        if is_waiting and failed_pools(state, ask.pools):
            _send_away_waiting(state, out, pool, workload, now)


def _send_away(state: State, out: Step, pool: Pool, node: Node, now: int) -> None:
    """What runs on a node of a failed pool runs elsewhere, or not at all. Where a node is out of touch, its lease says
    when that may be; what is kept on a lost one cannot be moved."""
    for token in sorted(state.held[node.name], reverse=True):  # nobody steps up
        instance = state.held[node.name].get(token)
        if instance is None:
            continue
        if pool.when_failed == "cancel":
            _cancel(state, out, pool, instance, now)
        elif instance.state != "stopping" and node.status != "lost":
            stop(state, out, instance, f"{_failed(pool)}; moved", now, moving=True)


def _cancel(state: State, out: Step, pool: Pool, instance: Instance, now: int) -> None:
    cause = f"{_failed(pool)}; cancelled"
    workload = state.workloads[instance.workload]
    cancel_one(state, out, instance, cause, now)
    if not _lives_elsewhere(state, workload):
        cancel_rest(state, workload, cause, now)
        finish_if_over(state, workload, now)


def _lives_elsewhere(state: State, workload: Workload) -> bool:
    """Whether something of a service goes on, or of a job may yet start."""
    if workload.policy.kind == "job":
        return True
    progress = state.progress_of(workload)
    stopping = sum(
        each.state == "stopping" and not each.moving
        for index in range(progress.begun)
        if (each := state.instances.get(f"{workload.key}.{index}")) is not None
    )
    alive = sum(number for each, number in progress.counts.items() if each not in FINISHED)
    return alive > stopping or state.has_fresh(workload)


def _send_away_waiting(state: State, out: Step, pool: Pool, workload: Workload, now: int) -> None:
    """Who waits for failed pools only is told so, or cancelled."""
    is_cancelled = pool.when_failed == "cancel"
    other = f"pool {pool.fallback} takes it" if pool.fallback else "it waits for the pool to be well again"
    cause = f"{_failed(pool)}; cancelled" if is_cancelled else f"{_failed(pool)}; {other}"
    if is_cancelled:
        cancel_rest(state, workload, cause, now)
    for index in range(state.begun(workload)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is None or instance.state != "queued":
            continue
        if is_cancelled:
            cancel_one(state, out, instance, cause, now)
        else:
            tell(instance, "queued", cause, now, state.revision + 1)
            instance.cause = cause
            state.touch_instance(instance)
    if is_cancelled:
        finish_if_over(state, workload, now)


def _rouse(state: State, out: Step, pool: Pool, node: Node, now: int) -> None:
    """Services see that they have to leave; who only stands behind another is called back."""
    for token in sorted(state.held[node.name], reverse=True):
        instance = state.held[node.name][token]
        if state.spec_of(instance).policy.kind == "service":
            state.rouse(instance.workload)
        elif instance.behind and instance.state in HOLDING and instance.state != "stopping":
            stop(state, out, instance, f"pool {pool.name} is draining", now, moving=True)


def _store(state: State, pool: Pool) -> None:
    pool = _with(pool, status=intern(pool.status), when_failed=intern(pool.when_failed))  # defaults are left out
    state.pools[pool.name] = pool
    state.dirty["pool", pool.name] = pool
    state.settle_pool(pool.name)
    state.silences.pop(pool.name, None)
    if _has_nodes(state, pool.name):
        watch_pool(state, pool.name)
    state.queue.look_again()


def _with(pool: Pool, **fields: Any) -> Pool:
    return msgspec.structs.replace(pool, **fields)


def _failed(pool: Pool) -> str:
    return f"pool {pool.name} failed: {pool.reason}" if pool.reason else f"pool {pool.name} failed"


def _has_nodes(state: State, name: str) -> bool:
    return any(node.facts.pool == name for node in state.nodes.values())


def _too_many(state: State, name: str) -> RoostError | None:
    if name in state.pools or len(state.pools) < limits.PROJECTS_MAX:
        return None
    return Conflict(f"there are {limits.PROJECTS_MAX:,} pools already", code="too_many")


def _refusal(state: State, pool: Pool) -> RoostError | None:
    """What is wrong with the settings of a pool, as things stand."""
    try:
        check_strategy(pool.strategy, "strategy")
    except Invalid as error:
        return error
    if pool.fallback and pool.fallback not in state.pools and not _has_nodes(state, pool.fallback):
        return Invalid("fallback", f"there is no pool {pool.fallback}: it has neither settings nor nodes")
    chain = [pool.name]
    name = pool.fallback
    while name and name not in chain:
        chain.append(name)
        name = state.pools[name].fallback if name in state.pools else ""
    if name:
        told = " → ".join([*chain, name])
        return Invalid("fallback", f"pools would stand in for each other in a circle: {told}", code="fallback_cycle")
    return _too_many(state, pool.name)
