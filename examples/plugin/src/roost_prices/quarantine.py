"""A filter: a node that is labelled `quarantine` takes nothing new."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Which nodes will do, one answer per row; None if all will."""
    if not any("quarantine" in facts.labels for facts in fleet.facts):
        return None
    return np.array(["quarantine" not in facts.labels for facts in fleet.facts], np.bool_)


def explain(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """What `roost why` tells of those that will not."""
    reasons = {fleet.facts[row].labels["quarantine"]: None for row in np.flatnonzero(failing)}
    return f"quarantine: {', '.join(reasons)}"
