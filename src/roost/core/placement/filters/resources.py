"""Resources: the amounts of the ask must be free on a node, and not above its totals."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.project import FILE_BYTES
from roost.model.records.workload import Ask
from roost.model.spec.units import show_bytes, show_cpu


def resources_mask(fleet: Fleet, ask: Ask) -> Mask:
    result = np.ones(len(fleet), np.bool_)
    for resource, amount in ask.resources:
        result &= fleet.free(resource) >= amount
    return result


def resources_allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        if total is None or total.item(row) - fleet.used[resource].item(row) < amount:
            return False
    return True


def explain_resources(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    parts = []
    for resource, amount in ask.resources:
        free = fleet.free(resource)[failing]
        if bool((free < amount).any()):
            most = max(0, int(free.max()))
            parts.append(f"needs {format_amount(resource, amount)}, at most {format_amount(resource, most)} free")
    return "resources: " + "; ".join(parts)


def format_amount(resource: str, amount: int) -> str:
    """An amount with its unit, for messages."""
    if resource in ("cpu", "gpu"):
        return f"{show_cpu(amount)} {resource}"
    return f"{show_bytes(amount) if resource in ('memory', 'disk', FILE_BYTES) else amount} {resource}"


def capacity_mask(fleet: Fleet, ask: Ask) -> Mask:
    result = np.ones(len(fleet), np.bool_)
    for resource, amount in ask.resources:
        result &= fleet.total[resource] >= amount if resource in fleet.total else False
    return result


def explain_capacity(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    parts = []
    for resource, amount in ask.resources:
        total = fleet.total.get(resource)
        most = int(total[failing].max()) if total is not None else 0
        if total is None or bool((total[failing] < amount).any()):
            parts.append(f"needs {format_amount(resource, amount)}, the largest has {format_amount(resource, most)}")
    return "capacity: " + "; ".join(parts)
