"""Rules a user wrote about nodes. A rule that cannot be evaluated on a node says no there."""

from functools import lru_cache

import msgspec
import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.rules import heard_by, holds
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes for which every rule says yes."""
    if not ask.require:
        return None
    result = np.ones(len(fleet), np.bool_)
    for rule in ask.require:
        result &= verdicts(fleet, rule)
    return result


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """The rules that say no, as they were written."""
    broken: dict[str, None] = {}
    for rule in ask.require:
        for row in np.flatnonzero(failing):
            yes, trouble = _verdict(rule, heard_by(rule, fleet.names[row], fleet.facts[row]))
            if not yes:
                broken[f"{rule} ({trouble})" if trouble else rule] = None
    return "require: " + "; ".join(broken) + " does not hold"


def verdicts(fleet: Fleet, rule: str) -> Mask:
    """What one rule says of each node. Nodes that are alike in all it speaks of are asked about once."""
    said = [
        _verdict(rule, heard_by(rule, name, facts))[0] for name, facts in zip(fleet.names, fleet.facts, strict=True)
    ]
    return np.array(said, np.bool_)


@lru_cache(maxsize=65_536)
def _verdict(rule: str, heard: bytes) -> tuple[bool, str]:
    return holds(rule, msgspec.msgpack.decode(heard))
