"""What was kept long enough goes: by retention, and the oldest first when there is too much."""

from roost.core.effects import Step
from roost.core.state import State
from roost.model.workload import Workload


def sweep(state: State, out: Step) -> None:
    """Keep the finished within bounds. Retention by time comes through timers."""
    most = state.settings.finished_max
    while max(state.finished_instances, len(state.finished)) > most:
        forget(state, out, state.workloads[next(iter(state.finished))])


def forget(state: State, out: Step, workload: Workload) -> None:
    """Drop a finished workload with its instances and logs."""
    assert workload.finished_ms, f"{workload.key} is not finished"
    key = workload.key
    progress = state.progress.pop(key, None)
    if progress is not None:
        state.finished_instances -= sum(progress.counts.values())
        for index in range(progress.begun):
            instance = f"{key}.{index}"
            if state.instances.pop(instance, None) is not None:
                state.dirty["instance", instance] = None
    del state.workloads[key]
    state.finished.pop(key, None)
    state.dirty["workload", key] = None
    out.swept.append(f"{key}/{workload.serial}")
