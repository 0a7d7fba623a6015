"""Schedules: jobs that run again and again. When they are due, how their last runs went, and a run besides."""

from heapq import nlargest
from typing import Annotated

from msgspec import Meta

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.events import RunNow
from roost.model.records.workload import Schedule, Workload
from roost.model.spec.cron import next_tick
from roost.schema.reason_text import message_of, reason_view
from roost.schema.schedules import RunView, SchedulePage, ScheduleView
from roost.schema.work import WorkloadView
from roost.server.auth.principal import Redactor
from roost.server.operations.context import Call
from roost.server.operations.parameters import DETAILS_MAX, After, DetailLimit, page_of
from roost.server.views.view_of import view_of
from roost.server.views.work import live_view

NEXT_MAX = 10
RUNS_MAX = 10  # shown of each, the last ones; all of them are workloads, and listed there

Coming = Annotated[int, Meta(ge=0, le=NEXT_MAX, description="How many coming ticks to tell.")]


async def list_schedules(
    call: Call, project: str = "", coming: Coming = 1, limit: DetailLimit = DETAILS_MAX, after: After = ""
) -> SchedulePage:
    """List schedules with their next ticks and their last runs."""
    state, redactor = await call.state(), call.redactor
    seen = (key for key in state.schedules if redactor.sees(key) and (not project or key.startswith(f"{project}/")))
    keys, following = page_of(seen, limit, after)
    items = [schedule_view(state, redactor, state.workloads[key], coming) for key in keys]
    return SchedulePage(state.revision, items, following)


async def get_schedule(call: Call, project: str, name: str, coming: Coming = 1) -> ScheduleView:
    """Show one schedule."""
    state, key = await call.state(), f"{project}/{name}"
    if key not in state.schedules:
        raise NotFound(f"there is no schedule {key}")
    return schedule_view(state, call.redactor, state.workloads[key], coming)


async def run_schedule(call: Call, project: str, name: str) -> WorkloadView:
    """Run once now, in addition to the ticks. `overlap` applies."""
    key = await call.ask(lambda number: RunNow(number, f"{project}/{name}"))
    state = call.engine.state
    run = state.workloads.get(key)
    if run is None:
        raise NotFound(f"{key} is over already and was not kept")
    return live_view(state, run, call.redactor.visible)


def schedule_view(state: State, redactor: Redactor, workload: Workload, coming: int) -> ScheduleView:
    schedule = workload.policy.schedule
    assert schedule is not None, f"{workload.key} has no schedule"
    runs = [state.workloads[run] for run in state.runs.get(workload.key, ())]
    last = nlargest(RUNS_MAX, runs, key=lambda item: item.serial)
    return view_of(
        ScheduleView,
        workload,
        schedule,
        ended=bool(workload.unstarted_end_state),
        message=message_of(workload.reason, redactor.visible),
        reason=reason_view(workload.reason, redactor.visible),
        next_ms=_coming(schedule, workload.tick_ms, coming) if not workload.unstarted_end_state else [],
        last_ms=max((run.tick_ms for run in runs), default=None),
        runs=[view_of(RunView, live_view(state, run, redactor.visible), run) for run in last],
    )


def _coming(schedule: Schedule, after_ms: int, coming: int) -> list[int]:
    found: list[int] = []
    while len(found) < coming and (tick := next_tick(schedule, found[-1] if found else after_ms)) is not None:
        found.append(tick)
    return found
