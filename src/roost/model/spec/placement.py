"""The `placement` block of a workload document: rules about nodes and about company, checked and made into an ask."""

from typing import Literal

import msgspec

from roost.model import limits
from roost.model.errors import Invalid
from roost.model.keys import workload_key
from roost.model.records.workload import AffinityRule, AffinityRules
from roost.model.records.workload import SpreadRule as SpreadRule
from roost.model.spec.names import check_name, check_text
from roost.model.spec.problems import check_each, indexed
from roost.model.spec.rules import check_rule, depends_on_usage
from roost.model.states import AffinityKind, Domain

Place = Literal["node", "rack", "zone", "region"]  # as Domain
AVOID_WEIGHT = 10  # of an `avoid` that does not say how much
SOFT = ":soft"  # after a taint: a preference for other nodes
NESTING = {domain: depth for depth, domain in enumerate(Domain)}  # a node is in one rack, a rack in one zone


class Preference(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A rule that is wished to hold; with a negative weight, wished not to."""

    that: str
    weight: int = 10


class AffinityBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The selector of an affinity rule: a workload, or all workloads of the project with a label."""

    workload: str = ""
    label: str = ""
    by: Place = "node"
    weight: int | None = None


class SpreadBlock(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    by: Place = "zone"
    max_skew: int = 1
    weight: int | None = None


class Placement(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    pool: str | list[str] = ""
    region: str | list[str] = ""
    strategy: str = ""
    require: list[str] = []
    prefer: list[Preference] = []
    tolerate: list[str] = []
    gpu_model: str | list[str] = ""
    near: list[AffinityBlock] = []
    apart: list[AffinityBlock] = []
    avoid: list[AffinityBlock] = []
    spread: SpreadBlock | list[SpreadBlock] = []
    per_node: int | None = None


def names_of(value: str | list[str], path: str, noun: str, *, is_name: bool = True) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else value
    names = [name for name in names if name]
    between(len(names), 0, limits.POOLS_MAX, path, noun)
    for name in names:
        (check_name if is_name else check_text)(name, path)
    return tuple(sorted(set(names)))


def rules_of(rules: list[str], path: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Hard rules: those about facts of a node, and those about current use."""
    between(len(rules), 0, limits.RULES_MAX, path, "rules")
    check_each(check_rule, indexed(rules, path))
    lasting = tuple(rule for rule in rules if not depends_on_usage(rule))
    return lasting, tuple(rule for rule in rules if depends_on_usage(rule))


def preferences_of(preferences: list[Preference], path: str) -> tuple[tuple[str, int], ...]:
    between(len(preferences), 0, limits.RULES_MAX, path, "preferences")
    check_each(_check_preference, indexed(preferences, path))
    return tuple((preference.that, preference.weight) for preference in preferences if preference.weight)


def _check_preference(preference: Preference, path: str) -> None:
    check_rule(preference.that, f"{path}.that")
    if depends_on_usage(preference.that):
        raise Invalid(f"{path}.that", "a preference speaks of what a node is; for what is in use take a strategy")
    between(preference.weight, -limits.WEIGHT_MAX, limits.WEIGHT_MAX, f"{path}.weight")


def tolerations_of(taints: list[str], path: str) -> tuple[str, ...]:
    between(len(taints), 0, limits.TAINTS_MAX, path, "taints")
    check_each(check_taint, [(here, taint) for here, taint in indexed(taints, path) if taint != "*"])
    return tuple(sorted({taint.removesuffix(SOFT) for taint in taints}))


def check_taint(taint: str, path: str) -> None:
    check_text(taint, path)
    bare = taint.removesuffix(SOFT)
    if not bare.partition("=")[0].strip() or ":" in bare:
        raise Invalid(
            path, f"a taint is KEY or KEY=VALUE, with {SOFT} after it if it is only a wish; not {taint!r:.60}"
        )


def taints_of(taints: list[str], path: str) -> tuple[str, ...]:
    between(len(taints), 0, limits.TAINTS_MAX, path, "taints")
    check_each(check_taint, indexed(taints, path))
    return tuple(sorted(set(taints)))


def affinity_of(placement: Placement, project: str, name: str, count: int, path: str) -> AffinityRules | None:
    rules: list[AffinityRule] = []
    for kind in AffinityKind:
        given: list[AffinityBlock] = getattr(placement, kind)
        between(len(given), 0, limits.RULES_MAX, f"{path}.{kind}", "rules")
        rules += [_affinity_rules(kind, other, project, f"{path}.{kind}[{index}]") for index, other in enumerate(given)]
    spreads = placement.spread if isinstance(placement.spread, list) else [placement.spread]
    between(len(spreads), 0, limits.RULES_MAX, f"{path}.spread", "rules")
    for index, spread in enumerate(spreads):
        here = f"{path}.spread[{index}]" if isinstance(placement.spread, list) else f"{path}.spread"
        between(spread.max_skew, 1, limits.SKEW_MAX, f"{here}.max_skew")
        _check_weight(spread.weight, f"{here}.weight")
    if placement.per_node is not None:
        between(placement.per_node, 1, limits.COUNT_SERVICE_MAX, f"{path}.per_node")
    if not rules and not spreads and placement.per_node is None:
        return None
    own = workload_key(project, name)
    _check_harmony([rule for rule in rules if not rule.weight], path)
    if placement.per_node is not None and placement.per_node < count:
        _check_together(rules, own, count, path)
    even = tuple(SpreadRule(Domain(spread.by), spread.max_skew, spread.weight or 0) for spread in spreads)
    return AffinityRules(own, tuple(rules), even, placement.per_node or 0)


def _affinity_rules(kind: AffinityKind, other: AffinityBlock, project: str, path: str) -> AffinityRule:
    if bool(other.workload) == bool(other.label):
        raise Invalid(path, "name either a workload or a label")
    _check_weight(other.weight, f"{path}.weight")
    if other.workload:
        home, slash, name = other.workload.rpartition("/")
        check_name(name, f"{path}.workload")
        if slash:
            check_name(home, f"{path}.workload")
        subject: str = workload_key(home or project, name)
    else:
        check_text(other.label, f"{path}.label")
        subject = f"{project}?{other.label}"
    weight = other.weight if other.weight is not None else AVOID_WEIGHT if kind == AffinityKind.AVOID else 0
    return AffinityRule(kind, subject, Domain(other.by), weight)


def _check_weight(weight: int | None, path: str) -> None:
    if weight is not None:
        between(weight, 1, limits.WEIGHT_MAX, path)


def _check_harmony(hard: list[AffinityRule], path: str) -> None:
    for near in hard:
        for apart in hard:
            if near.kind == AffinityKind.NEAR and apart.kind == AffinityKind.APART and near.selector == apart.selector:
                if NESTING[near.by] <= NESTING[apart.by]:
                    both = f"in the same {near.by} and apart by {apart.by}"
                    message = f"{near.selector} is to be {both}: no node can do both"
                    raise Invalid(f"{path}.near", message, code="contradiction")


def _check_together(rules: list[AffinityRule], own: str, count: int, path: str) -> None:
    if any(rule == AffinityRule(AffinityKind.NEAR, own) for rule in rules):
        message = f"all {count} instances are to be on one node, and not so many on one"
        raise Invalid(f"{path}.per_node", message, code="contradiction")


def between(number: int, least: int, most: int, path: str, noun: str = "") -> None:
    if not least <= number <= most:
        what = f" {noun}" if noun else ""
        answer = f", not {number:,}" if abs(number) < limits.BYTES_MAX else ""  # Python does not print absurd numbers
        raise Invalid(path, f"this must be {least:,} to {most:,}{what}{answer}")
