"""Whether a node takes new work at all: its status, and its taints."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask
from roost.model.spec.placement import SOFT


def taints_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    return fleet.field_mask(("taints", ask.tolerate), "taints", lambda taints: not _untolerated(taints, ask))


def explain_taints(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    found: dict[str, None] = {}
    for row in np.flatnonzero(failing):
        found.update(dict.fromkeys(_untolerated(fleet.facts[int(row)].taints, ask)))
    return "taint " + ", ".join(found) + " is not tolerated"


def tolerates(ask: Ask, taint: str) -> bool:
    """A toleration is `KEY=VALUE`, `KEY` for any value of it, or `*` for all taints."""
    taint = taint.removesuffix(SOFT)
    return any(toleration in (taint, taint.partition("=")[0], "*") for toleration in ask.tolerate)


def _untolerated(taints: tuple[str, ...], ask: Ask) -> list[str]:
    return [taint for taint in taints if not taint.endswith(SOFT) and not tolerates(ask, taint)]


def status_mask(fleet: Fleet, ask: Ask) -> Mask:
    return fleet.open


def status_allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    return fleet.open.item(row)


def explain_status(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    offline = int(np.count_nonzero(failing & ~fleet.online))
    parts = [f"{offline} offline"] if offline else []
    why: dict[str, list[str]] = {}
    for row in np.flatnonzero(failing & fleet.online).tolist():
        name = fleet.names[row]
        why.setdefault(fleet.closed.get(name, "draining"), []).append(name)
    for message, names in why.items():
        is_one = len(names) == 1 and message != "draining"
        parts.append(f"node {names[0]} is {message}" if is_one else f"{len(names)} {message}")
    return "status: " + ", ".join(parts)
