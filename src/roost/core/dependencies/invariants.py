"""What must be true of order and repetition after every step: who waits, for whom, and which runs a schedule has."""

from collections.abc import Iterator

from roost.core.dependencies.conditions import evaluate, evaluate_element
from roost.core.state.state import State
from roost.core.state.versions import instances_of
from roost.model.records.workload import Workload
from roost.model.spec.cron import next_tick
from roost.model.states import ALLOCATED, InstanceState, Milestone


def nothing_starts_too_early(state: State) -> Iterator[str]:
    """Who waits for others holds no room and was never tried; a schedule has no instances at all."""
    for key, instance in state.instances.items():
        workload = state.workloads.get(instance.workload)
        if workload is None:
            continue
        if instance.blocked_on_dependency and (instance.attempt or instance.state in ALLOCATED):
            yield f"{key} is {instance.state} at attempt {instance.attempt} and waits for others"
        if workload.policy.schedule:
            yield f"{key} is of a workload that has a schedule"
        if any(not condition.each for condition in workload.pending_conditions) and instance.state in ALLOCATED:
            yield f"{key} is {instance.state}, its workload waits for {workload.pending_conditions}"


def nobody_waits_for_what_has_come(state: State) -> Iterator[str]:
    """Every condition is still to be seen, unless there are news that nobody has looked at."""
    for key, workload in state.workloads.items():
        if workload.pending_conditions and workload.finished_ms:
            yield f"{key} is over and waits for {workload.pending_conditions}"
        for condition in workload.pending_conditions:
            other = state.workloads.get(condition.workload)
            is_decided = (
                other is None or other.finished_ms if condition.each else not evaluate(state, condition).is_open
            )
            if is_decided and condition.workload not in state.dependency_changes:
                yield f"{key} waits for {condition.workload} ({condition.when}), which is decided"
        if any(condition.each for condition in workload.policy.after):
            yield from _elements(state, workload)


def _elements(state: State, workload: Workload) -> Iterator[str]:
    if any(condition.workload in state.dependency_changes for condition in workload.pending_conditions):
        return
    for instance in instances_of(state, workload):
        if not instance.blocked_on_dependency or instance.state != InstanceState.QUEUED:
            continue
        verdicts = [
            evaluate_element(state, condition, instance.index) if condition.each else evaluate(state, condition)
            for condition in workload.pending_conditions
        ]
        if all(verdict.satisfied for verdict in verdicts) or any(verdict.impossible for verdict in verdicts):
            yield f"{instance.key} waits and is decided"


def waits_are_indexed(state: State) -> Iterator[str]:
    """Who waits for whom, and which runs belong to which schedule, is noted as the records say."""
    dependants: dict[str, set[str]] = {}
    listeners: dict[str, set[str]] = {}
    runs: dict[str, set[str]] = {}
    for key, workload in state.workloads.items():
        for condition in workload.pending_conditions:
            dependants.setdefault(condition.workload, set()).add(key)
            if condition.each or condition.when == Milestone.STARTED:
                listeners.setdefault(condition.workload, set()).add(key)
        if workload.parent:
            runs.setdefault(workload.parent, set()).add(key)
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
    """Somebody looks at every schedule that lives, at its next tick or before."""
    first: dict[str, int] = {}
    for at_ms, kind, key in [*state.timers, *state.postponed]:
        if kind == "cron":
            first[key] = min(at_ms, first.get(key, at_ms))
    for key, workload in state.workloads.items():
        if workload.policy.schedule is None or workload.finished_ms:
            continue
        tick = next_tick(workload.policy.schedule, workload.tick_ms)
        if tick is not None and first.get(key, tick + 1) > max(tick, state.now_ms + 1):
            yield f"nobody looks at the schedule of {key} at {tick}"


ORDER_RULES = (nothing_starts_too_early, nobody_waits_for_what_has_come, waits_are_indexed, schedules_are_timed)
