"""Contradictions: the smallest set of rules and needs that no node can meet together, whatever is in use."""

from itertools import combinations
from math import comb

import msgspec
import numpy as np

from roost.core.filters import driver, gpu_model, pool, region, taints
from roost.core.filters.require import verdicts
from roost.core.filters.resources import amount_words
from roost.core.fleet import Fleet, Mask
from roost.core.variants import require_paths
from roost.model.workload import Workload

EXACT_MAX = 20_000  # sets looked at, 0.2 us each; beyond that a set is only made as small as it gets


class Need(msgspec.Struct, frozen=True):
    """One thing a workload needs of a node: where it stands in the document, in words, and how many nodes meet it."""

    path: str
    words: str
    nodes: int


def contradiction(fleet: Fleet, workload: Workload) -> tuple[Need, ...]:
    """The fewest needs that no node meets together; empty if a node meets all, or there is no node."""
    if not len(fleet):
        return ()
    needs = _needs(fleet, workload)
    bits = [_bits(mask) for _, _, mask in needs]
    if _all_of(bits):
        return ()
    chosen = _smallest(bits) or _shrunk(bits)
    return tuple(Need(needs[each][0], needs[each][1], bits[each].bit_count()) for each in chosen)


def _needs(fleet: Fleet, workload: Workload) -> list[tuple[str, str, Mask]]:
    """Every rule and every resource by itself, with the nodes that meet it."""
    ask = workload.policy.ask
    found: list[tuple[str, str, Mask | None]] = [
        ("placement.pool", f"a pool of {' or '.join(ask.pools)}", pool.mask(fleet, ask)),
        ("placement.region", f"a region of {' or '.join(ask.regions)}", region.mask(fleet, ask)),
        ("kind", f"the {ask.driver} driver", driver.mask(fleet, ask)),
        ("placement.gpu_model", f"a GPU of {' or '.join(ask.gpu_models)}", gpu_model.mask(fleet, ask)),
        ("placement.tolerate", "no taint that is not tolerated", taints.mask(fleet, ask)),
    ]
    lasting = set(ask.require)
    found += [(path, rule, verdicts(fleet, rule)) for path, rule in require_paths(workload) if rule in lasting]
    for resource, amount in ask.resources:
        total = fleet.total.get(resource, np.zeros(len(fleet), np.int64))
        found.append((f"resources.{resource}", amount_words(resource, amount), total >= amount))
    return [(path, words, mask) for path, words, mask in found if mask is not None and not bool(mask.all())]


def _smallest(bits: list[int]) -> tuple[int, ...]:
    """The first of the smallest sets without a common node, as far as there is time to look."""
    looked = 0
    for size in range(1, len(bits) + 1):
        looked += comb(len(bits), size)
        if looked > EXACT_MAX:
            return ()
        for chosen in combinations(range(len(bits)), size):
            if not _all_of([bits[each] for each in chosen]):
                return chosen
    return ()


def _shrunk(bits: list[int]) -> tuple[int, ...]:
    """A set of which nothing can be left out: each need that is not needed for the contradiction goes."""
    kept = list(range(len(bits)))
    for each in range(len(bits)):
        rest = [other for other in kept if other != each]
        if not _all_of([bits[other] for other in rest]):
            kept = rest
    return tuple(kept)


def _all_of(bits: list[int]) -> int:
    """The nodes in all of these sets; none given: every node."""
    common = -1
    for each in bits:
        common &= each
    return common


def _bits(mask: Mask) -> int:
    """A set of nodes as one number: sets are cut in a tenth of a microsecond."""
    return int.from_bytes(np.packbits(mask).tobytes(), "big")
