"""What is asked for must be free on the node."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.units import show_bytes, show_cpu
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask:
    """Nodes with room."""
    result = np.ones(len(fleet), np.bool_)
    for resource, amount in ask.resources:
        result &= fleet.free(resource) >= amount
    return result


def allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    """Whether one node has room."""
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        if total is None or total.item(row) - fleet.used[resource].item(row) < amount:
            return False
    return True


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Each resource that is short, and the most that is free among those nodes."""
    parts = []
    for resource, amount in ask.resources:
        free = fleet.free(resource)[failing]
        if bool((free < amount).any()):
            most = max(0, int(free.max()))
            parts.append(f"needs {amount_words(resource, amount)}, at most {amount_words(resource, most)} free")
    return "resources: " + "; ".join(parts)


def amount_words(resource: str, amount: int) -> str:
    """An amount with its unit, as a person would say it."""
    if resource == "cpu":
        return f"{show_cpu(amount)} cpu"
    if resource in ("memory", "disk"):
        return f"{show_bytes(amount)} {resource}"
    if resource == "gpu":
        return f"{show_cpu(amount)} gpu"
    return f"{amount} {resource}"
