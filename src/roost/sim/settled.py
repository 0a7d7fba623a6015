"""Whether work over time has come to where it belongs, once nothing goes wrong any more."""

from collections.abc import Callable

import msgspec

from roost.core.explain import why
from roost.core.state import State
from roost.model.document import decode_document
from roost.model.states import FINISHED
from roost.model.workload import Workload
from roost.sim.clients import Clients
from roost.sim.truth import Truth

Gone = Callable[[str], bool]  # whether the machine that a node was last is gone for good


def unsettled(state: State, workload: Workload, may_wait: tuple[str, ...], is_gone: Gone) -> list[str]:
    """What a service still has to do: all are of its present version, and nobody stands in any more."""
    if workload.policy.kind != "service" or workload.rest or workload.adopted or is_held_up(state, workload, may_wait):
        return []
    key, rollout = workload.key, workload.rollout
    own = [each for each in state.instances.values() if each.workload == key]
    if any(is_gone(each.node) for each in own if each.node):
        return []  # it is kept on a machine that never comes back
    left = [f"{each.key} stands in for nobody ({each.state})" for each in own if each.index >= workload.count]
    if rollout is not None and rollout.state != "done":
        left.append(f"version {workload.version} of {key} is {rollout.state}: {rollout.cause}")
    for each in own:
        if each.index < workload.count and each.version != workload.version:
            left.append(f"{each.key} is of version {each.version}, not {workload.version} ({each.state})")
        if each.state == "running" and not each.serving_ms:
            left.append(f"{each.key} is not ready: {each.sick}")
    if key in state.restless:
        left.append(f"{key} is restless")
    return left


def is_held_up(state: State, workload: Workload, may_wait: tuple[str, ...]) -> bool:
    """Whether one of a service waits for what may never come."""
    for index in range(max(workload.count, state.begun(workload))):
        instance = state.instances.get(f"{workload.key}.{index}")
        current = instance.state if instance is not None else "queued"
        has_turn = instance is not None or index < workload.count
        if current == "queued" and has_turn and why(state, workload.key, index).code in may_wait:
            return True
        if current in FINISHED:
            return True
    return False


def waits_rightly(state: State, workload: Workload) -> bool:
    """Whether something that it waits for has neither come nor become impossible."""
    for each in workload.waits:
        other = state.workloads.get(each.workload)
        if other is None or other.finished_ms:
            continue
        instances = [one for one in state.instances.values() if one.workload == other.key]
        is_service = other.policy.kind == "service"
        has_started = any(one.serving_ms if is_service else one.started_ms for one in instances)
        if each.when != "started" or not has_started or each.each:
            return True
    return False


def left_in_pools(state: State, truth: Truth, names: dict[str, str]) -> list[str]:
    """What runs where a pool has failed and was to be moved."""
    left = []
    for token, live in truth.live.items():
        node = state.nodes.get(names[live.host])
        pool = state.pools.get(node.facts.pool) if node is not None and node.status != "lost" else None
        if pool is not None and pool.status == "failed":
            left.append(f"{live.run.workload}.{live.run.index} runs as {token} on {live.host}, whose pool has failed")
    return left


def nurse(state: State, clients: Clients, may_wait: tuple[str, ...]) -> None:
    """What somebody does who looks after services: promote what waits for it, repair what failed."""
    for workload in list(state.workloads.values()):
        rollout = workload.rollout
        if rollout is None or workload.rest or workload.finished_ms or is_held_up(state, workload, may_wait):
            continue
        if rollout.state == "waiting":
            clients.promote(workload.key)
        elif rollout.state == "failed":
            document = decode_document(workload.document)
            if document.update is not None:
                document.update.deadline = "1m"  # longer than anything takes that has room
            document.command = f"work repaired {workload.version}"
            clients.apply(msgspec.to_builtins(document))
