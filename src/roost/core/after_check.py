"""What is wrong with whom new workloads want to wait for: nobody of that name, another shape, or a circle."""

from collections.abc import Mapping

from roost.core.circle import circle
from roost.core.state import State
from roost.model.errors import Invalid, RoostError, TooMuch
from roost.model.events import Wanted
from roost.model.workload import After, Policy

ELEMENTS_AT_ONCE_MAX = 100_000  # of one request, that wait for an element each: a record each, 30 MB in one commit


def after_refusal(state: State, new: Mapping[str, Wanted]) -> tuple[str, RoostError] | None:
    """Which of the new workloads cannot wait as it wants to, and why; both are by key."""
    elements = 0
    for key, wanted in new.items():
        error = _shape(wanted)
        for index, condition in enumerate(wanted.policy.after):
            error = error or _condition(state, new, wanted, condition, f"after[{index}]")
        if error is not None:
            return key, error
        if any(each.each for each in wanted.policy.after):
            elements += wanted.count
    if elements > ELEMENTS_AT_ONCE_MAX:
        words = f"{elements:,} elements that wait for an element each; one request may have {ELEMENTS_AT_ONCE_MAX:,}"
        return next(iter(new)), TooMuch(words, path="after")
    chain = after_cycle(state, new)
    if chain:
        words = f"each waits for the next, so none would ever start: {' after '.join(chain)}"
        return next(each for each in chain if each in new), Invalid("after", words, code="after_cycle")
    return None


def after_cycle(state: State, new: Mapping[str, Wanted]) -> list[str]:
    """The chain that comes back to its beginning, if taking in `new` closes one; else nothing."""
    return circle(new, lambda key: _waits_for(state, new, key))


def _waits_for(state: State, new: Mapping[str, Wanted], key: str) -> list[str]:
    if key in new:
        return [each.workload for each in new[key].policy.after]
    known = state.workloads.get(key)
    return [each.workload for each in known.waits] if known is not None else []


def _shape(wanted: Wanted) -> Invalid | None:
    """What does not go together in one workload."""
    policy = wanted.policy
    if policy.schedule and policy.gang_size:
        return Invalid("gang", "the runs of a schedule cannot share a gang with others; `gang: true` is for each run")
    for index, each in enumerate(policy.after):
        if each.each and policy.kind != "job":
            return Invalid(f"after[{index}].each", f"only the elements of a job wait for one each, not a {policy.kind}")
        if each.each and policy.gang:
            return Invalid(f"after[{index}].each", "the elements of a gang start together, not each after its own")
    return None


def _condition(
    state: State, new: Mapping[str, Wanted], wanted: Wanted, condition: After, path: str
) -> Invalid | None:  # fmt: skip
    other = _other(state, new, condition.workload)
    name = condition.workload.partition("/")[2]
    if other is None:
        return Invalid(f"{path}.workload", f"there is no workload {name}; submit it first or in the same request")
    policy, count = other
    if policy.schedule:
        words = f"{name} runs by a schedule and never ends; wait for one of its runs"
        return Invalid(f"{path}.workload", words)
    if policy.kind != "job" and condition.when not in ("", "started"):
        words = f"{name} is a {policy.kind}, which does not end by itself; wait until it has `started`"
        return Invalid(f"{path}.when", words)
    if condition.each and policy.kind != "job":
        return Invalid(f"{path}.each", f"{name} is a {policy.kind}; only elements of a job are waited for one by one")
    if condition.each and count != wanted.count:
        words = f"{name} has {count:,} elements, {wanted.name} has {wanted.count:,}; one for one they must be as many"
        return Invalid(f"{path}.each", words)
    return None


def _other(state: State, new: Mapping[str, Wanted], key: str) -> tuple[Policy, int] | None:
    if key in new:
        return new[key].policy, new[key].count
    known = state.workloads.get(key)
    return (known.policy, known.count) if known is not None else None
