"""Schedules as they look from outside: the next ticks, the last runs and how they went."""

from heapq import nlargest

from roost.core.state.state import State, in_maintenance
from roost.core.watch import coming_ticks
from roost.model.records.workload import Workload
from roost.schema.reason_text import Visible, message_of, reason_view
from roost.schema.schedules import RunView, ScheduleView
from roost.server.views.view_of import view_of
from roost.server.views.work import live_view

RUNS_MAX = 10  # shown of each, the last ones; all of them are workloads, and listed there


def schedule_view(
    state: State, visible: Visible | None, workload: Workload, now_ms: int, coming: int = 1
) -> ScheduleView | None:
    """The schedule of a workload; None: it has none."""
    schedule = workload.policy.schedule
    if schedule is None:
        return None
    runs = [state.workloads[run] for run in state.runs.get(workload.key, ())]
    last = nlargest(RUNS_MAX, runs, key=lambda item: item.serial)
    ended = bool(workload.unstarted_end_state)
    return view_of(
        ScheduleView,
        workload,
        schedule,
        ended=ended,
        paused=in_maintenance(state) and not ended,
        message=message_of(workload.reason, visible),
        reason=reason_view(workload.reason, visible),
        next_ms=coming_ticks(state, workload, coming, now_ms),
        last_ms=max((run.tick_ms for run in runs), default=None),
        runs=[view_of(RunView, live_view(state, run, visible), run) for run in last],
    )
