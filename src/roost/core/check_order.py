"""What must be true of order and repetition after every step: who waits, for whom, and which runs a schedule has."""

from collections.abc import Iterator

from roost.core.state import State
from roost.core.verdict import judge, judge_element
from roost.model.schedule import next_tick
from roost.model.states import HOLDING
from roost.model.workload import Workload


def nothing_starts_too_early(state: State) -> Iterator[str]:
    """Who waits for others holds no room and was never tried; a schedule has no instances at all."""
    for key, instance in state.instances.items():
        workload = state.workloads.get(instance.workload)
        if workload is None:
            continue
        if instance.waits and (instance.attempt or instance.state in HOLDING):
            yield f"{key} is {instance.state} at attempt {instance.attempt} and waits for others"
        if workload.policy.schedule:
            yield f"{key} is of a workload that has a schedule"
        if any(not each.each for each in workload.waits) and instance.state in HOLDING:
            yield f"{key} is {instance.state}, its workload waits for {workload.waits}"


def nobody_waits_for_what_has_come(state: State) -> Iterator[str]:
    """Every condition is still to be seen, unless there are news that nobody has looked at."""
    for key, workload in state.workloads.items():
        if workload.waits and workload.finished_ms:
            yield f"{key} is over and waits for {workload.waits}"
        for each in workload.waits:
            other = state.workloads.get(each.workload)
            is_decided = other is None or other.finished_ms if each.each else not judge(state, each).is_open
            if is_decided and each.workload not in state.news:
                yield f"{key} waits for {each.workload} ({each.when}), which is decided"
        if any(each.each for each in workload.policy.after):
            yield from _elements(state, workload)


def _elements(state: State, workload: Workload) -> Iterator[str]:
    if any(each.workload in state.news for each in workload.waits):
        return
    for index in range(state.begun(workload)):
        instance = state.instances.get(f"{workload.key}.{index}")
        if instance is None or not instance.waits or instance.state != "queued":
            continue
        verdicts = [judge_element(state, each, index) if each.each else judge(state, each) for each in workload.waits]
        if all(each.holds for each in verdicts) or any(each.never for each in verdicts):
            yield f"{instance.key} waits and is decided"


def waits_are_indexed(state: State) -> Iterator[str]:
    """Who waits for whom, and which runs belong to which schedule, is noted as the records say."""
    dependants: dict[str, set[str]] = {}
    listeners: dict[str, set[str]] = {}
    runs: dict[str, set[str]] = {}
    for key, workload in state.workloads.items():
        for each in workload.waits:
            dependants.setdefault(each.workload, set()).add(key)
            if each.each or each.when == "started":
                listeners.setdefault(each.workload, set()).add(key)
        if workload.parent:
            runs.setdefault(workload.parent, set()).add(key)
    schedules = {key for key, workload in state.workloads.items() if workload.policy.schedule}
    if set(state.schedules) != schedules:
        yield f"schedules are {list(state.schedules)}, they should be {sorted(schedules)}"
    for name, noted, found in (
        ("dependants", state.dependants, dependants),
        ("listeners", state.listeners, listeners),
        ("runs", state.runs, runs),
    ):
        if {key: set(each) for key, each in noted.items()} != found:
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
