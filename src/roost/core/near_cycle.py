"""Workloads that wait for each other for ever: a must be near b, and b near a, and neither runs.

Only rules that must hold and that name a workload make such a chain. Whoever is near a label may be helped by somebody
who comes later, and whoever is near its own kind begins by itself.
"""

from collections.abc import Container, Mapping

from roost.core.circle import circle
from roost.model.events import Wanted
from roost.model.placement import NESTING
from roost.model.workload import Policy, Workload


def near_cycle(workloads: Mapping[str, Workload], new: Mapping[str, Wanted], present: Container[str] = ()) -> list[str]:
    """The chain that comes back to its beginning, if taking in `new` closes one; else nothing.

    Both are by key. `present` are the subjects of which somebody is on a node: nobody waits for them.
    """
    return circle(new, lambda key: _waits_for(key, _policy(key, workloads, new), present))


def at_odds(workloads: Mapping[str, Workload], new: Mapping[str, Wanted]) -> tuple[str, str] | None:
    """Two workloads of which one must be near the other, and that one apart from it; the new one first."""
    for key, wanted in new.items():
        for other in _named(wanted.policy):
            policy, mine = _policy(other, workloads, new), wanted.policy
            if policy is not None and (_clash(mine, key, policy, other) or _clash(policy, other, mine, key)):
                return key, other
    return None


def _named(policy: Policy) -> list[str]:
    """The workloads that hard rules speak of."""
    rules = policy.ask.company.rules if policy.ask.company is not None else ()
    return [rule.subject for rule in rules if not rule.weight and "/" in rule.subject]


def _clash(one: Policy, one_key: str, other: Policy, other_key: str) -> bool:
    """Whether one must be where the other must not be with it."""
    if one.ask.company is None or other.ask.company is None:
        return False
    nears = [r.by for r in one.ask.company.rules if r.kind == "near" and not r.weight and r.subject == other_key]
    aparts = [r.by for r in other.ask.company.rules if r.kind == "apart" and not r.weight and r.subject == one_key]
    return any(NESTING[near] <= NESTING[apart] for near in nears for apart in aparts)


def _policy(key: str, workloads: Mapping[str, Workload], new: Mapping[str, Wanted]) -> Policy | None:
    if key in new:
        return new[key].policy
    known = workloads.get(key)
    return None if known is None or known.finished_ms else known.policy


def _waits_for(key: str, policy: Policy | None, present: Container[str]) -> list[str]:
    """Workloads that must be somewhere before this one can start."""
    if policy is None or policy.ask.company is None or key in present:
        return []
    return [
        rule.subject
        for rule in policy.ask.company.rules
        if rule.kind == "near" and not rule.weight and rule.subject != key and "/" in rule.subject
    ]
