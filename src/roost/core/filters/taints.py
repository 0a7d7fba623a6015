"""A tainted node takes only work that tolerates the taint."""

import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.placement import SOFT
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes without a taint, or with taints that are all tolerated."""
    return fleet.said_of(("taints", ask.tolerate), lambda name, facts: not facts.taints or not _bad(facts.taints, ask))


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """Which taints are not tolerated."""
    found: dict[str, None] = {}
    for row in np.flatnonzero(failing):
        found.update(dict.fromkeys(_bad(fleet.facts[int(row)].taints, ask)))
    return "taint " + ", ".join(found) + " is not tolerated"


def tolerates(ask: Ask, taint: str) -> bool:
    """Whether an ask lives with a taint: `KEY` or `KEY=VALUE` by name, `KEY` for any value of it, `*` for all."""
    taint = taint.removesuffix(SOFT)
    return any(each in (taint, taint.partition("=")[0], "*") for each in ask.tolerate)


def _bad(taints: tuple[str, ...], ask: Ask) -> list[str]:
    return [taint for taint in taints if not taint.endswith(SOFT) and not tolerates(ask, taint)]
