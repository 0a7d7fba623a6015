"""Variants of an ask: less of something, or one rule fewer, each with the place in the document where it stands."""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from roost.core.filters.taints import tolerates
from roost.core.fleet import GPU, Fleet
from roost.model.document import decode_document
from roost.model.placement import SOFT
from roost.model.workload import Ask, Company, Workload

TAINTS_MAX = 8  # different taints tried: more means that the fleet is not for this work


class Variant(NamedTuple):
    """An ask that differs in one point: where it stands in the document, and in words what is different."""

    path: str
    words: str
    ask: Ask


def with_amount(ask: Ask, resource: str, amount: int) -> Ask:
    """The ask with another amount of one resource."""
    resources = tuple((name, amount if name == resource else known) for name, known in ask.resources)
    changed = msgspec.structs.replace(ask, resources=tuple(each for each in resources if each[1]))
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


def without_a_rule(fleet: Fleet, workload: Workload) -> Iterator[Variant]:
    """The ask with one rule dropped, one after the other."""
    ask = workload.policy.ask
    replace = msgspec.structs.replace
    if ask.pools:
        yield Variant("placement.pool", f"without the pool ({' or '.join(ask.pools)})", replace(ask, pools=()))
    if ask.regions:
        yield Variant("placement.region", f"without the region ({' or '.join(ask.regions)})", replace(ask, regions=()))
    if ask.gpu_models:
        words = f"without the GPU model ({' or '.join(ask.gpu_models)})"
        yield Variant("placement.gpu_model", words, replace(ask, gpu_models=()))
    for path, rule in require_paths(workload):
        changed = replace(
            ask,
            require=tuple(each for each in ask.require if each != rule),
            require_now=tuple(each for each in ask.require_now if each != rule),
        )
        yield Variant(path, f"without the rule {rule}", changed)
    yield from _tolerating(fleet, ask)
    yield from _any_port(workload)
    if ask.company is not None:
        yield from _other_company(ask, ask.company)


def require_paths(workload: Workload) -> list[tuple[str, str]]:
    """Hard rules about nodes, with where they stand in the document."""
    placement = decode_document(workload.document).placement
    rules = placement.require if placement else []
    return [(f"placement.require[{index}]", rule) for index, rule in enumerate(rules)]


def _tolerating(fleet: Fleet, ask: Ask) -> Iterator[Variant]:
    hard = (taint for facts in fleet.facts for taint in facts.taints if not taint.endswith(SOFT))
    unknown = [taint for taint in dict.fromkeys(hard) if not tolerates(ask, taint)]
    for taint in unknown[:TAINTS_MAX]:
        changed = msgspec.structs.replace(ask, tolerate=tuple(sorted([*ask.tolerate, taint])))
        yield Variant("placement.tolerate", f"tolerating the taint {taint}", changed)


def _any_port(workload: Workload) -> Iterator[Variant]:
    ask = workload.policy.ask
    for position, (name, port) in enumerate(zip(workload.policy.ports, ask.ports, strict=True)):
        if port:
            ports = (*ask.ports[:position], 0, *ask.ports[position + 1 :])
            words = f"with any port for {name} instead of {port}"
            yield Variant(f"ports.{name}", words, msgspec.structs.replace(ask, ports=ports))


def _other_company(ask: Ask, company: Company) -> Iterator[Variant]:
    replace = msgspec.structs.replace
    seen: dict[str, int] = {}
    for position, rule in enumerate(company.rules):
        index = seen[rule.kind] = seen.get(rule.kind, -1) + 1
        if rule.weight:
            continue
        rules = company.rules[:position] + company.rules[position + 1 :]
        words = (
            f"without having to be {rule.kind} {'to' if rule.kind == 'near' else 'from'} {rule.subject} by {rule.by}"
        )
        yield Variant(f"placement.{rule.kind}[{index}]", words, replace(ask, company=replace(company, rules=rules)))
    for index, spread in enumerate(company.spread):
        if not spread.weight:
            rest = company.spread[:index] + company.spread[index + 1 :]
            words = f"without the spread by {spread.by}"
            yield Variant(f"placement.spread[{index}]", words, replace(ask, company=replace(company, spread=rest)))
    if company.per_node:
        words = f"without the limit of {company.per_node} on a node"
        yield Variant("placement.per_node", words, replace(ask, company=replace(company, per_node=0)))


def smaller_amounts(
    fleet: Fleet, ask: Ask, resource: str, rows: "np.ndarray[tuple[int], np.dtype[np.int64]]"
) -> list[int]:
    """Amounts at which one of these rows begins to have enough of a resource, all below the ask, largest first."""
    asked = dict(ask.resources)[resource]
    if resource == "gpu":
        free = fleet.devices[rows].tolist()
        amounts = {devices_amount(each, most) for each in free for most in range(GPU, asked, GPU)}
        amounts |= {devices_amount(each, min(asked - 1, GPU - 1)) for each in free}
    else:
        total = fleet.total.get(resource)
        amounts = set() if total is None else {*fleet.free(resource)[rows].tolist(), *total[rows].tolist()}
    return sorted((each for each in amounts if 0 < each < asked), reverse=True)
