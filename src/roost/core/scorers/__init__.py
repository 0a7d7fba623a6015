"""Scorers: each is a vector of integers in 0..ONE over rows, higher is better."""

import numpy as np

from roost.core.fleet import Fleet, Ints

ONE = 1_000_000  # a score of 1; integers choose the same node on every machine
WEIGHTS = (("cpu", 4), ("memory", 4), ("disk", 2))  # in tenths: 0.4 cpu + 0.4 memory + 0.2 disk
WEIGHT_SUM = 10
SHARE_BITS = 42  # amount (42 bits) times ONE (20 bits) stays below 63 bits


def share(part: Ints, total: Ints) -> Ints:
    """part / total in 0..ONE, 0 where the total is 0; exact in integers even for pebibytes.

    A node that came back with less than it uses counts as full, not as worse than that: a score is never below 0.
    """
    most = int(total.max(initial=0))
    shift = max(0, most.bit_length() - SHARE_BITS)
    whole = total >> shift
    return np.where(whole > 0, np.minimum((part >> shift) * ONE // np.maximum(whole, 1), ONE), 0)


def columns(fleet: Fleet, resource: str, rows: "np.typing.NDArray[np.int64] | None") -> tuple[Ints, Ints] | None:
    """(used, total) of a resource for these rows, or None when nobody has it."""
    if resource not in fleet.total:
        return None
    if rows is None:
        return fleet.used[resource], fleet.total[resource]
    return fleet.used[resource][rows], fleet.total[resource][rows]
