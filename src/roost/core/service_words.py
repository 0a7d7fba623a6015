"""What is to be said of a replica beyond its state: what it waits for, and why it is not yet as it should be."""

from roost.core.reconcile import NOT_MISSED, leaving
from roost.core.rollout import cap_of
from roost.core.state import State
from roost.core.versions import instances_of
from roost.model.instance import Instance
from roost.model.workload import DEFAULT_UPDATE, Workload


def service_words(state: State, instance: Instance) -> str:
    """Of a replica that runs: whether it is ready, whether it has to go, and what it waits for; empty: all is well."""
    workload = state.workloads[instance.workload]
    if workload.policy.kind != "service" or instance.state != "running" or workload.rest:
        return ""
    told = []
    if not instance.serving_ms:
        told.append(f"it is not ready: {instance.sick}" if instance.sick else "it is not ready yet")
    goal = _goal(state, workload, instance)
    if goal:
        told.append(f"{goal} and waits: {floor_words(state, workload)}")
    elif instance.version != workload.version:
        told.append(_stays(workload, instance))
    return "; ".join(told)


def floor_words(state: State, workload: Workload) -> str:
    """`3 of 4 must stay available, and 3 are`"""
    update = workload.policy.update or DEFAULT_UPDATE
    everyone = instances_of(state, workload)
    ended = sum(each.state in NOT_MISSED and each.index < workload.count for each in everyone)
    floor = max(0, workload.count - ended - update.unavailable_of(workload.count))
    since = state.now_ms - update.healthy_after_ms
    available = sum(
        bool(each.serving_ms) and (each.version != workload.version or each.serving_ms <= since) for each in everyone
    )
    return f"{floor} of {workload.count} must stay available, and {available} {'is' if available == 1 else 'are'}"


def _goal(state: State, workload: Workload, instance: Instance) -> str:
    """What is to become of a replica where it runs; empty: it may stay."""
    if instance.index >= workload.count:
        return f"it is beyond its count of {workload.count}, is to be stopped"
    if instance.version != workload.version and instance.index < cap_of(workload):
        return f"it is to be updated to version {workload.version}"
    words = leaving(state, instance.node)
    return f"it is to leave ({words})" if words else ""


def _stays(workload: Workload, instance: Instance) -> str:
    rollout = workload.rollout
    if rollout is not None and rollout.state == "failed":
        return f"it stays at version {instance.version}: {rollout.cause}"
    return f"it stays at version {instance.version} until the canaries of version {workload.version} are promoted"
