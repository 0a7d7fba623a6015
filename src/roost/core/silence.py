"""Silence: since when no node of a pool is in touch, where that matters."""

import numpy as np

from roost.core.state import State


def watch_pool(state: State, name: str) -> None:
    """Note since when no node of a pool is in touch, and look at it again when that has been for too long."""
    pool = state.pools.get(name)
    if pool is None or not pool.fail_after_ms or in_touch(state, name):
        state.silences.pop(name, None)
    elif name not in state.silences:
        state.silences[name] = state.now_ms
        state.at(state.now_ms + pool.fail_after_ms, "pool", name)


def in_touch(state: State, name: str) -> bool:
    """Whether a node of a pool is in touch."""
    fleet = state.fleet
    own = fleet.said_of(("of pool", name), lambda _, facts: facts.pool == name)
    return bool(np.any(own & fleet.online))
