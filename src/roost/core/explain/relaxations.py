"""Variants of an ask: less of something, or one rule fewer, each with the place in the document where it stands."""

from collections.abc import Iterator
from functools import reduce
from itertools import combinations
from math import comb
from operator import and_
from typing import NamedTuple

import msgspec
import numpy as np

from roost.core.placement.filters import availability, gpu, location
from roost.core.placement.filters.availability import tolerates
from roost.core.placement.filters.resources import format_amount
from roost.core.placement.filters.rules import evaluate_on_nodes
from roost.core.state.fleet import GPU, Fleet, Ints, Mask
from roost.model.records.workload import AffinityRules, Ask, Workload
from roost.model.spec.document import decode_document
from roost.model.spec.placement import SOFT
from roost.model.states import AffinityKind

TAINTS_MAX = 8  # different taints tried: more means that the fleet is not for this work
EXACT_MAX = 20_000  # sets looked at, 0.2 us each; beyond that a set is only made as small as it gets


class Relaxation(NamedTuple):
    path: str
    message: str
    ask: Ask


def with_amount(ask: Ask, resource: str, amount: int) -> Ask:
    resources = tuple((name, amount if name == resource else existing) for name, existing in ask.resources)
    changed = msgspec.structs.replace(ask, resources=tuple(resource for resource in resources if resource[1]))
    if resource != "gpu":
        return changed
    milli, count = (min(amount, GPU), max(1, amount // GPU)) if amount else (0, 0)
    return msgspec.structs.replace(changed, gpu_milli=milli, gpu_count=count)


def devices_amount(free: list[int], most: int) -> int:
    """The most GPU that devices with so much left can give, up to an amount: whole ones, or a share of one."""
    whole = sum(left >= GPU for left in free)
    if most >= GPU and whole:
        return min(most // GPU, whole) * GPU
    return max(0, min(max(free, default=0), most, GPU - 1 if most >= GPU else most))


def relaxations(fleet: Fleet, workload: Workload) -> Iterator[Relaxation]:
    ask = workload.policy.ask
    replace = msgspec.structs.replace
    for path, noun, names, changed in (
        ("placement.pool", "pool", ask.pools, replace(ask, pools=())),
        ("placement.region", "region", ask.regions, replace(ask, regions=())),
        ("placement.gpu_model", "GPU model", ask.gpu_models, replace(ask, gpu_models=())),
    ):
        if names:
            yield Relaxation(path, f"without the {noun} ({' or '.join(names)})", changed)
    for path, rule in require_paths(workload):
        require = tuple(other for other in ask.require if other != rule)
        require_now = tuple(other for other in ask.require_now if other != rule)
        changed = replace(ask, require=require, require_now=require_now)
        yield Relaxation(path, f"without the rule {rule}", changed)
    yield from _tolerating(fleet, ask)
    yield from _any_port(workload)
    if ask.affinity is not None:
        yield from _other_affinity(ask, ask.affinity)


def require_paths(workload: Workload) -> list[tuple[str, str]]:
    placement = decode_document(workload.document).placement
    rules = placement.require if placement else []
    return [(f"placement.require[{index}]", rule) for index, rule in enumerate(rules)]


def _tolerating(fleet: Fleet, ask: Ask) -> Iterator[Relaxation]:
    hard = (taint for facts in fleet.facts for taint in facts.taints if not taint.endswith(SOFT))
    unknown = [taint for taint in dict.fromkeys(hard) if not tolerates(ask, taint)]
    for taint in unknown[:TAINTS_MAX]:
        changed = msgspec.structs.replace(ask, tolerate=tuple(sorted([*ask.tolerate, taint])))
        yield Relaxation("placement.tolerate", f"tolerating the taint {taint}", changed)


def _any_port(workload: Workload) -> Iterator[Relaxation]:
    ask = workload.policy.ask
    for position, (name, port) in enumerate(zip(workload.policy.ports, ask.ports, strict=True)):
        if port:
            ports = (*ask.ports[:position], 0, *ask.ports[position + 1 :])
            message = f"with any port for {name} instead of {port}"
            yield Relaxation(f"ports.{name}", message, msgspec.structs.replace(ask, ports=ports))


def _other_affinity(ask: Ask, affinity: AffinityRules) -> Iterator[Relaxation]:
    replace = msgspec.structs.replace
    seen: dict[str, int] = {}
    for position, rule in enumerate(affinity.rules):
        index = seen[rule.kind] = seen.get(rule.kind, -1) + 1
        if rule.weight:
            continue
        rules = affinity.rules[:position] + affinity.rules[position + 1 :]
        preposition = "to" if rule.kind == AffinityKind.NEAR else "from"
        message = f"without having to be {rule.kind} {preposition} {rule.selector} by {rule.by}"
        changed = replace(ask, affinity=replace(affinity, rules=rules))
        yield Relaxation(f"placement.{rule.kind}[{index}]", message, changed)
    for index, spread in enumerate(affinity.spread):
        if not spread.weight:
            rest = affinity.spread[:index] + affinity.spread[index + 1 :]
            changed = replace(ask, affinity=replace(affinity, spread=rest))
            yield Relaxation(f"placement.spread[{index}]", f"without the spread by {spread.by}", changed)
    if affinity.per_node:
        message = f"without the limit of {affinity.per_node} on a node"
        yield Relaxation("placement.per_node", message, replace(ask, affinity=replace(affinity, per_node=0)))


def smaller_amounts(fleet: Fleet, ask: Ask, resource: str, rows: Ints) -> list[int]:
    """Amounts at which one of these rows begins to have enough of a resource, all below the ask, largest first."""
    asked = dict(ask.resources)[resource]
    if resource == "gpu":
        free = fleet.devices[rows].tolist()
        amounts = {devices_amount(resource, most) for resource in free for most in range(GPU, asked, GPU)}
        amounts |= {devices_amount(resource, min(asked - 1, GPU - 1)) for resource in free}
    else:
        total = fleet.total.get(resource)
        amounts = set() if total is None else {*fleet.free(resource)[rows].tolist(), *total[rows].tolist()}
    return sorted((amount for amount in amounts if 0 < amount < asked), reverse=True)


class Requirement(msgspec.Struct, frozen=True):
    """One thing a workload needs of a node: its path in the document, a message, and how many nodes satisfy it."""

    path: str
    message: str
    nodes: int


def unsat_core(fleet: Fleet, workload: Workload) -> tuple[Requirement, ...]:
    """The fewest needs that no node meets together; empty if a node meets all, or there is no node."""
    if not len(fleet):
        return ()
    needs = _needs(fleet, workload)
    bits = [_bits(mask) for _, _, mask in needs]
    if _all_of(bits):
        return ()
    chosen = _smallest(bits) or _shrunk(bits)
    return tuple(Requirement(needs[item][0], needs[item][1], bits[item].bit_count()) for item in chosen)


def _needs(fleet: Fleet, workload: Workload) -> list[tuple[str, str, Mask]]:
    ask = workload.policy.ask
    found: list[tuple[str, str, Mask | None]] = [
        ("placement.pool", f"a pool of {' or '.join(ask.pools)}", location.pool_mask(fleet, ask)),
        ("placement.region", f"a region of {' or '.join(ask.regions)}", location.region_mask(fleet, ask)),
        ("kind", f"the {ask.driver} driver", location.driver_mask(fleet, ask)),
        ("placement.gpu_model", f"a GPU of {' or '.join(ask.gpu_models)}", gpu.gpu_model_mask(fleet, ask)),
        ("placement.tolerate", "no taint that is not tolerated", availability.taints_mask(fleet, ask)),
    ]
    lasting = set(ask.require)
    found += [(path, rule, evaluate_on_nodes(fleet, rule)) for path, rule in require_paths(workload) if rule in lasting]
    for resource, amount in ask.resources:
        total = fleet.total.get(resource, np.zeros(len(fleet), np.int64))
        found.append((f"resources.{resource}", format_amount(resource, amount), total >= amount))
    return [(path, message, mask) for path, message, mask in found if mask is not None and not bool(mask.all())]


def _smallest(bits: list[int]) -> tuple[int, ...]:
    """The first of the smallest sets without a common node, as far as there is time to look."""
    checked = 0
    for size in range(1, len(bits) + 1):
        checked += comb(len(bits), size)
        if checked > EXACT_MAX:
            return ()
        for chosen in combinations(range(len(bits)), size):
            if not _all_of([bits[item] for item in chosen]):
                return chosen
    return ()


def _shrunk(bits: list[int]) -> tuple[int, ...]:
    """A set of which nothing can be left out: each need that is not needed for the contradiction goes."""
    stored = list(range(len(bits)))
    for index in range(len(bits)):
        rest = [other for other in stored if other != index]
        if not _all_of([bits[other] for other in rest]):
            stored = rest
    return tuple(stored)


def _all_of(bits: list[int]) -> int:
    return reduce(and_, bits, -1)


def _bits(mask: Mask) -> int:
    """A set of nodes as one number: sets are cut in a tenth of a microsecond."""
    return int.from_bytes(np.packbits(mask).tobytes(), "big")
