"""Volumes: directories that the operator of a node gives to containers, by name."""

import numpy as np

from roost.core.state.fleet import Fleet, Mask
from roost.model.records.workload import Ask

WRITABLE = ":rw"


def volumes_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    if not ask.volumes:
        return None
    return fleet.field_mask(("volumes", ask.volumes), "volumes", lambda offered: not missing(offered, ask.volumes))


def explain_volumes(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    lacking: dict[str, None] = {}
    for row in np.flatnonzero(failing).tolist():
        lacking.update(dict.fromkeys(missing(fleet.facts[row].volumes, ask.volumes)))
    named = [f"{name.removesuffix(WRITABLE)} to write to" if name.endswith(WRITABLE) else name for name in lacking]
    return f"volume: has no {' and no '.join(named)}"


def missing(offered: tuple[str, ...], wanted: tuple[str, ...]) -> list[str]:
    """What is not offered. One that can be written to can also be read only."""
    return [name for name in wanted if name not in offered and f"{name}{WRITABLE}" not in offered]
