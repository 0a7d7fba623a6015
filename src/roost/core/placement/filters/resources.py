"""Resources: what is asked for must be free on a node, and a node that is too small when empty never fits."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask
from roost.model.spec.units import show_bytes, show_cpu


def resources_mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes with room."""
    result = np.ones(len(fleet), np.bool_)
    for resource, amount in ask.resources:
        result &= fleet.free(resource) >= amount
    return result


def resources_allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    """Whether one node has room."""
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        if total is None or total.item(row) - fleet.used[resource].item(row) < amount:
            return False
    return True


def explain_resources(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Each resource that is short, and the most that is free among those nodes."""
    parts = []
    for resource, amount in ask.resources:
        free = fleet.free(resource)[failing]
        if bool((free < amount).any()):
            most = max(0, int(free.max()))
            parts.append(f"needs {format_amount(resource, amount)}, at most {format_amount(resource, most)} free")
    return "resources: " + "; ".join(parts)


def format_amount(resource: str, amount: int) -> str:
    """An amount with its unit, as a person would say it."""
    if resource == "cpu":
        return f"{show_cpu(amount)} cpu"
    if resource in ("memory", "disk"):
        return f"{show_bytes(amount)} {resource}"
    if resource == "gpu":
        return f"{show_cpu(amount)} gpu"
    return f"{amount} {resource}"


def capacity_mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes whose totals are large enough."""
    result = np.ones(len(fleet), np.bool_)
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        if total is None:
            result[:] = False
        else:
            result &= total >= amount
    return result


def explain_capacity(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """By how much the largest of them is too small."""
    parts = []
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        most = int(total[failing].max()) if total is not None else 0
        if total is None or bool((total[failing] < amount).any()):
            parts.append(f"needs {format_amount(resource, amount)}, the largest has {format_amount(resource, most)}")
    return "capacity: " + "; ".join(parts)
