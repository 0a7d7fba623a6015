"""Rules of users about nodes: about their facts, and about their current use."""

from functools import lru_cache

import msgspec
import numpy as np

from roost.core.placement.alike import rows_alike
from roost.core.state.fleet import Fleet, Mask, all_of
from roost.model.records.workload import Ask
from roost.model.spec.rules import cache_key, holds

RESULTS_MAX = 65_536  # remembered: a rule about the names of 10,000 nodes takes that many


def require_mask(fleet: Fleet, ask: Ask) -> Mask | None:
    return all_of(evaluate_on_nodes(fleet, rule) for rule in ask.require)


def explain_require(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    broken: dict[str, None] = {}
    for rule in ask.require:
        for row in np.flatnonzero(failing):
            trouble = violation_of(rule, cache_key(rule, fleet.names[row], fleet.facts[row]))
            if trouble:
                broken[trouble] = None
    return "require: " + "; ".join(broken) + " does not hold"


def evaluate_on_nodes(fleet: Fleet, rule: str) -> Mask:
    return fleet.cached_mask(("require", rule), lambda: _evaluate(fleet, rule))


def _evaluate(fleet: Fleet, rule: str) -> Mask:
    """Nodes that are equal in all fields of a rule are evaluated once."""
    rows, kinds = rows_alike(fleet, rule)
    keys = [cache_key(rule, fleet.names[row], fleet.facts[row]) for row in rows.tolist()]
    answers: Mask = np.array([evaluate_rule(rule, key)[0] for key in keys], np.bool_)
    return answers[kinds]


def violation_of(rule: str, received: bytes) -> str:
    """The rule as written if it does not hold, with the error of its evaluation; empty if it holds."""
    yes, trouble = evaluate_rule(rule, received)
    return "" if yes else f"{rule} ({trouble})" if trouble else rule


@lru_cache(maxsize=RESULTS_MAX)
def evaluate_rule(rule: str, received: bytes) -> tuple[bool, str]:
    """Whether a rule holds for nodes with these fields, and the error of its evaluation."""
    return holds(rule, msgspec.msgpack.decode(received))


def use_mask(fleet: Fleet, ask: Ask) -> Mask:
    if not ask.require_now:
        return np.ones(len(fleet), np.bool_)
    return np.array([use_allows(fleet, ask, row) for row in range(len(fleet))], np.bool_)


def use_allows(fleet: Fleet, ask: Ask, row: int) -> bool:
    return not ask.require_now or not _broken_now(fleet, ask, row)


def explain_use(fleet: Fleet, ask: Ask, failing: Mask) -> str:
    broken: dict[str, None] = {}
    for row in np.flatnonzero(failing):
        broken.update(dict.fromkeys(_broken_now(fleet, ask, int(row))))
    return "require: " + "; ".join(broken) + " does not hold now"


def _broken_now(fleet: Fleet, ask: Ask, row: int) -> list[str]:
    name, facts = fleet.names[row], fleet.facts[row]
    used = {resource: fleet.used[resource].item(row) for resource in facts.resources}
    free = {resource: fleet.total[resource].item(row) - taken for resource, taken in used.items()}
    found = [violation_of(rule, cache_key(rule, name, facts, (used, free))) for rule in ask.require_now]
    return [rule for rule in found if rule]
