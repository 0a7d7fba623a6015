"""Refusals of dependencies and affinity rules between workloads: unknown names, other shapes, cycles."""

from collections.abc import Callable, Container, Iterable, Mapping

from roost.core.state.outcome import Paced
from roost.core.state.state import State
from roost.model.errors import Invalid, RoostError, TooMuch
from roost.model.events import WorkloadSpec
from roost.model.keys import split_workload_key
from roost.model.limits import INPUT_FOLDERS_MAX
from roost.model.records.workload import AffinityRules, After, Policy, Workload
from roost.model.spec.document import outputs_in
from roost.model.spec.placement import NESTING
from roost.model.states import AffinityKind, Domain, Milestone, WorkloadKind

EDGES_PER_UNIT = 10  # dependencies followed: a microsecond each
ELEMENTS_AT_ONCE_MAX = 100_000  # of one request, that wait for an element each: a record each, 30 MB in one commit


def after_refusal(state: State, new: Mapping[str, WorkloadSpec]) -> Paced[tuple[str, RoostError] | None]:
    """The first new workload with an impossible dependency, by key, and why."""
    elements = 0
    for key, wanted in new.items():
        error = _shape(wanted) or _inputs(state, new, wanted)
        for index, condition in enumerate(wanted.policy.after):
            error = error or _condition(state, new, wanted, condition, f"after[{index}]")
            yield 1
        if error is not None:
            return key, error
        if any(condition.each for condition in wanted.policy.after):
            elements += wanted.count
    if elements > ELEMENTS_AT_ONCE_MAX:
        message = f"{elements:,} elements that wait for an element each; one request may have {ELEMENTS_AT_ONCE_MAX:,}"
        return next(iter(new)), TooMuch(message, path="after")
    waiting = [key for key, wanted in new.items() if wanted.policy.after]
    chain = yield from _find_cycle(waiting, lambda key: _waits_for(state, new, key))
    if chain:
        message = f"each waits for the next, so none would ever start: {' after '.join(chain)}"
        return next(key for key in chain if key in new), Invalid("after", message, code="after_cycle")
    return None


def _waits_for(state: State, new: Mapping[str, WorkloadSpec], key: str) -> list[str]:
    if key in new:
        return [condition.workload for condition in new[key].policy.after]
    workload = state.workloads.get(key)
    waits = workload.pending_conditions if workload is not None else ()
    return [condition.workload for condition in waits if condition.when != Milestone.APPROVED]


def _shape(wanted: WorkloadSpec) -> Invalid | None:
    policy = wanted.policy
    if policy.schedule and policy.gang_size:
        return Invalid("gang", "the runs of a schedule cannot share a gang with others; `gang: true` is for each run")
    for index, condition in enumerate(policy.after):
        if condition.each and policy.kind != WorkloadKind.JOB:
            return Invalid(f"after[{index}].each", f"only the elements of a job wait for one each, not a {policy.kind}")
        if condition.each and policy.gang:
            return Invalid(f"after[{index}].each", "the elements of a gang start together, not each after its own")
    return None


def _has_come(state: State, wanted: WorkloadSpec, key: str) -> bool:
    """Whether a live workload waited for another one, which has come and was forgotten since."""
    known = state.workloads.get(wanted.key)
    if known is None or known.finished_ms or any(condition.workload == key for condition in known.pending_conditions):
        return False
    return any(condition.workload == key for condition in known.policy.after)


def _inputs(state: State, new: Mapping[str, WorkloadSpec], wanted: WorkloadSpec) -> Invalid | None:
    """Why outputs of other workloads cannot be inputs. They are of jobs, which end."""
    by_element = {condition.workload for condition in wanted.policy.after if condition.each}
    for position, item in enumerate(wanted.policy.inputs):
        other = new.get(item.workload) or state.workloads.get(item.workload)
        if not item.workload or (other is None and _has_come(state, wanted, item.workload)):
            message = ""
        elif other is None:
            message = f"there is no workload {split_workload_key(item.workload)[1]}"
        elif other.policy.kind != WorkloadKind.JOB:
            message = f"{other.name} is a {other.policy.kind}, which does not end; inputs are outputs of jobs"
        elif other.policy.schedule:
            message = f"{other.name} runs by a schedule; name one of its runs"
        elif not outputs_in(other.document):
            message = f"{other.name} has no outputs; list them in its document"
        elif other.count > INPUT_FOLDERS_MAX and item.workload not in by_element:
            message = (
                f"{other.name} has {other.count:,} instances; outputs of at most {INPUT_FOLDERS_MAX:,} can be inputs"
            )
        else:
            message = ""
        if message:
            return Invalid(f"inputs[{position}].workload", message)
    return None


def _condition(
    state: State, new: Mapping[str, WorkloadSpec], wanted: WorkloadSpec, condition: After, path: str
) -> Invalid | None:  # fmt: skip
    other = new.get(condition.workload) or state.workloads.get(condition.workload)
    _, name = split_workload_key(condition.workload)
    if other is None and _has_come(state, wanted, condition.workload):
        return None
    if other is None:
        return Invalid(f"{path}.workload", f"there is no workload {name}; submit it first or in the same request")
    policy, count = other.policy, other.count
    if policy.schedule:
        message = f"{name} runs by a schedule and never ends; wait for one of its runs"
        return Invalid(f"{path}.workload", message)
    if policy.kind != WorkloadKind.JOB and condition.when not in (None, Milestone.STARTED):
        message = f"{name} is a {policy.kind}, which does not end by itself; wait until it has `started`"
        return Invalid(f"{path}.when", message)
    if condition.each and policy.kind != WorkloadKind.JOB:
        return Invalid(f"{path}.each", f"{name} is a {policy.kind}; only elements of a job are waited for one by one")
    if condition.each and count != wanted.count:
        message = f"{name} has {count:,} elements, {wanted.name} has {wanted.count:,}; one for one they must be as many"
        return Invalid(f"{path}.each", message)
    return None


def _find_cycle(starts: Iterable[str], waits_for: Callable[[str], list[str]]) -> Paced[list[str]]:
    """Depth first and without recursion: a chain may be long."""
    open_ends: set[str] = set()  # from here no chain comes back; only ever asked for members
    for start in starts:
        path: list[str] = []
        position: dict[str, int] = {}
        todo: list[tuple[str, bool]] = [(start, False)]
        while todo:  # depth first and without recursion: a chain may be long
            key, is_done = todo.pop()
            if is_done:
                open_ends.add(path.pop())
                del position[key]
            elif key in position:
                return [*path[position[key] :], key]
            elif key not in open_ends:
                position[key] = len(path)
                path.append(key)
                todo.append((key, True))
                names = waits_for(key)
                todo += [(name, False) for name in reversed(names)]
                yield 1 + len(names) // EDGES_PER_UNIT
    return []


def affinity_cycle(
    workloads: Mapping[str, Workload], new: Mapping[str, WorkloadSpec], present: Container[str] = ()
) -> Paced[list[str]]:
    """The chain that comes back to its beginning, if taking in `new` closes one; else nothing.

    Both are by key. `present` are the selectors with an instance on a node: nothing has to wait for them.
    """
    named = [key for key, wanted in new.items() if wanted.policy.ask.affinity is not None]
    return (yield from _find_cycle(named, lambda key: _must_be_near(key, _policy(key, workloads, new), present)))


def contradiction_of(
    workloads: Mapping[str, Workload], new: Mapping[str, WorkloadSpec]
) -> Paced[tuple[str, str] | None]:
    """Two workloads of which one must be near the other, and that one apart from it; the new one first."""
    for key, wanted in new.items():
        for other in _named(wanted.policy):
            policy, mine = _policy(other, workloads, new), wanted.policy
            if policy is not None and (_clash(mine, key, policy, other) or _clash(policy, other, mine, key)):
                return key, other
            yield 1
    return None


def _named(policy: Policy) -> list[str]:
    rules = policy.ask.affinity.rules if policy.ask.affinity is not None else ()
    return [rule.selector for rule in rules if not rule.weight and "/" in rule.selector]


def _clash(one: Policy, one_key: str, other: Policy, other_key: str) -> bool:
    if one.ask.affinity is None or other.ask.affinity is None:
        return False
    nears = _domains(one.ask.affinity, AffinityKind.NEAR, other_key)
    aparts = _domains(other.ask.affinity, AffinityKind.APART, one_key)
    return any(NESTING[near] <= NESTING[apart] for near in nears for apart in aparts)


def _domains(affinity: AffinityRules, kind: AffinityKind, selector: str) -> list[Domain]:
    return [rule.by for rule in affinity.rules if rule.kind == kind and rule.selector == selector and not rule.weight]


def _policy(key: str, workloads: Mapping[str, Workload], new: Mapping[str, WorkloadSpec]) -> Policy | None:
    if key in new:
        return new[key].policy
    workload = workloads.get(key)
    return None if workload is None or workload.finished_ms else workload.policy


def _must_be_near(key: str, policy: Policy | None, present: Container[str]) -> list[str]:
    if policy is None or policy.ask.affinity is None or key in present:
        return []
    return [
        rule.selector
        for rule in policy.ask.affinity.rules
        if rule.kind == AffinityKind.NEAR and not rule.weight and rule.selector != key and "/" in rule.selector
    ]
