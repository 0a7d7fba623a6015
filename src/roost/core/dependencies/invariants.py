"""Invariants of dependencies and schedules, which hold after every step."""

from collections import defaultdict
from collections.abc import Iterator

from roost.core.dependencies.conditions import evaluate, evaluate_for
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.model.records.workload import Workload
from roost.model.spec.cron import next_tick
from roost.model.states import ALLOCATED, InstanceState, Milestone


def nothing_starts_too_early(state: State) -> Iterator[str]:
    """A pending dependent has no allocation and no attempt; a schedule has no instances."""
    for key, instance in state.instances.items():
        workload = state.workloads.get(instance.workload)
        if workload is None:
            continue
        is_again = instance.workload in state.companions  # a retry waits until its companions have started again
        if instance.blocked_on_dependency and (instance.attempt and not is_again or instance.state in ALLOCATED):
            yield f"{key} is {instance.state} at attempt {instance.attempt} and waits for others"
        if workload.policy.schedule:
            yield f"{key} is of a workload that has a schedule"
        if any(not condition.each for condition in workload.pending_conditions) and instance.state in ALLOCATED:
            yield f"{key} is {instance.state}, its workload waits for {workload.pending_conditions}"


def no_instance_waits_for_what_has_come(state: State) -> Iterator[str]:
    """Every pending condition is open, unless a change of its workload is still to be handled."""
    for key, workload in state.workloads.items():
        if workload.pending_conditions and workload.finished_ms:
            yield f"{key} is over and waits for {workload.pending_conditions}"
        for condition in workload.pending_conditions:
            other = state.workloads.get(condition.workload)
            is_open = other is not None and not other.finished_ms
            if not condition.each:
                is_open = evaluate(state, condition).is_open
            if not is_open and condition.workload not in state.dependency_changes:
                yield f"{key} waits for {condition.workload} ({condition.when}), which is decided"
        if any(condition.each for condition in workload.policy.after):
            yield from _elements(state, workload)


def _elements(state: State, workload: Workload) -> Iterator[str]:
    if any(condition.workload in state.dependency_changes for condition in workload.pending_conditions):
        return
    for instance in instances_of(state, workload):
        if not instance.blocked_on_dependency or instance.state != InstanceState.QUEUED:
            continue
        verdicts = [evaluate_for(state, condition, instance.index) for condition in workload.pending_conditions]
        if all(verdict.satisfied for verdict in verdicts) or any(verdict.impossible for verdict in verdicts):
            yield f"{instance.key} waits and is decided"


def waits_are_indexed(state: State) -> Iterator[str]:
    """The indexes of dependents and of runs match the records."""
    dependants, listeners, runs = defaultdict(set), defaultdict(set), defaultdict(set)
    for key, workload in state.workloads.items():
        for condition in workload.pending_conditions:
            dependants[condition.workload].add(key)
            if condition.each or condition.when == Milestone.STARTED:
                listeners[condition.workload].add(key)
        if workload.parent:
            runs[workload.parent].add(key)
    schedules = {key for key, workload in state.workloads.items() if workload.policy.schedule}
    if set(state.schedules) != schedules:
        yield f"schedules are {list(state.schedules)}, they should be {sorted(schedules)}"
    for name, noted, found in (
        ("dependents", state.dependents, dependants),
        ("instance_dependents", state.instance_dependents, listeners),
        ("runs", state.runs, runs),
    ):
        if {key: set(item) for key, item in noted.items()} != found:
            yield f"{name} are {noted}, they should be {found}"


def schedules_are_timed(state: State) -> Iterator[str]:
    """Every live schedule has a timer at its next tick or before."""
    first: dict[str, int] = {}
    for at_ms, kind, key in [*state.timers, *state.postponed]:
        if kind == "cron":
            first[key] = min(at_ms, first.get(key, at_ms))
    for key, workload in state.workloads.items():
        if workload.policy.schedule is None or workload.finished_ms:
            continue
        tick = next_tick(workload.policy.schedule, workload.tick_ms)
        if tick is not None and first.get(key, tick + 1) > max(tick, state.now_ms + 1):
            yield f"no timer for the schedule of {key} at {tick}"


ORDER_RULES = (nothing_starts_too_early, no_instance_waits_for_what_has_come, waits_are_indexed, schedules_are_timed)
