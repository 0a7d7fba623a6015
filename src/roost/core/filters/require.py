"""Rules a user wrote about nodes. A rule that cannot be evaluated on a node says no there."""

from functools import lru_cache

import msgspec
import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.rules import heard_by, holds
from roost.model.workload import Ask

VERDICTS_MAX = 65_536  # remembered: a rule about the names of 10,000 nodes takes that many


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
            trouble = broken_by(rule, heard_by(rule, fleet.names[row], fleet.facts[row]))
            if trouble:
                broken[trouble] = None
    return "require: " + "; ".join(broken) + " does not hold"


def verdicts(fleet: Fleet, rule: str) -> Mask:
    """What one rule says of each node. Nodes that are alike in all it speaks of are asked about once."""
    return fleet.said_of(("require", rule), lambda name, facts: verdict(rule, heard_by(rule, name, facts))[0])


def broken_by(rule: str, heard: bytes) -> str:
    """The rule as it was written if it says no, with what kept it from being evaluated; nothing if it says yes."""
    yes, trouble = verdict(rule, heard)
    return "" if yes else f"{rule} ({trouble})" if trouble else rule


@lru_cache(maxsize=VERDICTS_MAX)
def verdict(rule: str, heard: bytes) -> tuple[bool, str]:
    """What a rule says of nodes that are alike in all it speaks of, and why it could not be evaluated if so."""
    return holds(rule, msgspec.msgpack.decode(heard))
