"""Whether services, dependencies and pools have converged once faults have ended."""

from collections.abc import Callable

import msgspec

from roost.core.explain.why import why
from roost.core.state.state import State
from roost.model.events import Promote
from roost.model.records.workload import Workload
from roost.model.spec.document import decode_document
from roost.model.states import (
    ABSENT,
    FINISHED,
    InstanceState,
    Milestone,
    Move,
    PoolStatus,
    RolloutState,
    WorkloadKind,
)
from roost.sim.checks.oracle import Oracle, policy_of
from roost.sim.world.clients import Clients

Gone = Callable[[str], bool]  # whether the machine that a node was last is gone for good


def not_converged(state: State, workload: Workload, may_wait: tuple[str, ...], is_gone: Gone) -> list[str]:
    """What a service still has to do: all instances have its present version, and no surge instance is left."""
    is_service = workload.policy.kind == WorkloadKind.SERVICE and not workload.unstarted_end_state
    if not is_service or workload.adopted or is_held_up(state, workload, may_wait):
        return []
    key, rollout = workload.key, workload.rollout
    own = [instance for instance in state.instances.values() if instance.workload == key]
    if any(is_gone(instance.node) for instance in own if instance.node):
        return []  # it is kept on a machine that never comes back
    left = []
    if rollout is not None and rollout.state != RolloutState.DONE:
        left.append(f"version {workload.version} of {key} is {rollout.state}: {rollout.reason}")
    for instance in own:
        if instance.index >= workload.count:
            left.append(f"{instance.key} is a surge instance without need ({instance.state})")
        elif instance.version != workload.version:
            left.append(f"{instance.key} is of version {instance.version}, not {workload.version} ({instance.state})")
        if instance.state == InstanceState.RUNNING and not instance.ready_since_ms:
            left.append(f"{instance.key} is not ready: {instance.health_failure}")
    if key in state.reconciling:
        left.append(f"{key} is restless")
    return left


def is_held_up(state: State, workload: Workload, may_wait: tuple[str, ...]) -> bool:
    """Whether an instance of a service is pending for a reason that may never go away, or has finished."""
    for index in range(max(workload.count, state.placed_count(workload))):
        instance = state.instances.get(f"{workload.key}.{index}")
        current = instance.state if instance is not None else InstanceState.QUEUED
        has_turn = instance is not None or index < workload.count
        if current == InstanceState.QUEUED and has_turn:
            code = why(state, workload.key, index).code
            if code in may_wait or (code == "after" and waits_rightly(state, workload)):
                return True
        if current in FINISHED:
            return True
    return False


def waits_rightly(state: State, workload: Workload) -> bool:
    """Whether a condition of the workload is neither satisfied nor impossible."""
    for condition in workload.pending_conditions:
        other = state.workloads.get(condition.workload)
        if other is None or other.finished_ms:
            continue
        instances = [one for one in state.instances.values() if one.workload == other.key]
        is_service = other.policy.kind == WorkloadKind.SERVICE
        has_started = any(one.ready_since_ms if is_service else one.started_ms for one in instances)
        if condition.when != Milestone.STARTED or not has_started or condition.each:
            return True
    return False


def left_in_pools(state: State, truth: Oracle, names: dict[str, str]) -> list[str]:
    left = []
    for token, live in truth.live.items():
        node = state.nodes.get(names[live.host])
        pool = state.pools.get(node.facts.pool) if node is not None and node.status not in ABSENT else None
        stays = policy_of(live.run.document).move != Move.COLD
        if pool is not None and pool.status == PoolStatus.FAILED and not stays:
            left.append(f"{live.run.workload}.{live.run.index} runs as {token} on {live.host}, whose pool has failed")
    return left


def nurse(state: State, clients: Clients, may_wait: tuple[str, ...]) -> None:
    """What an operator does: promote rollouts that need it, repair those that failed."""
    for workload in list(state.workloads.values()):
        rollout = workload.rollout
        is_ending = workload.unstarted_end_state or workload.finished_ms
        if rollout is None or is_ending or is_held_up(state, workload, may_wait):
            continue
        if rollout.state == RolloutState.WAITING:
            clients.request(Promote, workload.key)
        elif rollout.state == RolloutState.FAILED:
            document = decode_document(workload.document)
            if document.update is not None:
                document.update.deadline = "1m"  # longer than anything takes that has room
            document.command = f"work repaired {workload.version}"
            clients.apply(msgspec.to_builtins(document))


def approve_all(state: State, clients: Clients) -> None:
    """What an operator also does: approve every action that needs only that."""
    for workload in list(state.workloads.values()):
        if any(condition.when == Milestone.APPROVED for condition in workload.pending_conditions):
            clients.approve(workload.key)
