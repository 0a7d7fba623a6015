"""What virtual machines need of a node: images and bridges that its operator named, firmware, an accelerator."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask


def vm_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    if not ask.vm:
        return None
    wanted = set(ask.vm)
    return fleet.field_mask(("vm", ask.vm), "vm", lambda offered: wanted.issubset(offered))


def explain_vm(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    lacking: dict[str, None] = {}
    for row in np.flatnonzero(failing).tolist():
        lacking.update(dict.fromkeys(need for need in ask.vm if need not in fleet.facts[row].vm))
    return f"vm: has no {' and no '.join(need.replace('/', ' ') for need in lacking)}"
