"""Rules a user wrote about nodes. A rule that cannot be evaluated on a node says no there."""

from functools import lru_cache

import msgspec
import numpy as np

from roost.core.fleet import Fleet, Mask
from roost.model.node import Facts
from roost.model.rules import holds, words_of
from roost.model.workload import Ask


def mask(fleet: Fleet, ask: Ask) -> Mask | None:
    """Nodes for which every rule says yes."""
    if not ask.require:
        return None
    return np.array([not _broken(fleet, row, ask.require) for row in range(len(fleet))], np.bool_)


def words(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    """The rules that say no, as they were written."""
    broken: dict[str, None] = {}
    for row in np.flatnonzero(failing):
        broken.update(dict.fromkeys(_broken(fleet, int(row), ask.require)))
    return "require: " + "; ".join(broken) + " does not hold"


def _broken(fleet: Fleet, row: int, rules: tuple[str, ...]) -> tuple[str, ...]:
    return _verdict(rules, fleet.names[row], msgspec.msgpack.encode(fleet.facts[row], order="deterministic"))


@lru_cache(maxsize=65_536)
def _verdict(rules: tuple[str, ...], name: str, packed: bytes) -> tuple[str, ...]:
    node = words_of(name, msgspec.msgpack.decode(packed, type=Facts))
    broken = []
    for rule in rules:
        yes, trouble = holds(rule, node)
        if not yes:
            broken.append(f"{rule} ({trouble})" if trouble else rule)
    return tuple(broken)
