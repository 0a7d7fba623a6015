"""Schedules: jobs that run again and again. When they are due, how their last runs went, and a run besides."""

from typing import Annotated

from msgspec import Meta

from roost.model.errors import NotFound
from roost.model.events import RunNow
from roost.schema.schedules import SchedulePage, ScheduleView
from roost.schema.work import WorkloadView
from roost.server.operations.context import Call
from roost.server.operations.parameters import DETAILS_MAX, After, DetailLimit, page_of
from roost.server.views.schedules import schedule_view
from roost.server.views.work import live_view

NEXT_MAX = 10

Coming = Annotated[int, Meta(ge=0, le=NEXT_MAX, description="How many coming ticks to tell.")]


async def list_schedules(
    call: Call, project: str = "", coming: Coming = 1, limit: DetailLimit = DETAILS_MAX, after: After = ""
) -> SchedulePage:
    """List schedules with their next ticks and their last runs."""
    state, redactor = await call.state(), call.redactor
    seen = (key for key in state.schedules if redactor.sees(key) and (not project or key.startswith(f"{project}/")))
    keys, following = page_of(seen, limit, after)
    found = (schedule_view(state, redactor.visible, state.workloads[key], call.now_ms, coming) for key in keys)
    items = [view for view in found if view is not None]
    return SchedulePage(state.revision, items, following)


async def get_schedule(call: Call, project: str, name: str, coming: Coming = 1) -> ScheduleView:
    """Show one schedule."""
    state, key = await call.state(), f"{project}/{name}"
    workload = state.workloads.get(key)
    view = schedule_view(state, call.redactor.visible, workload, call.now_ms, coming) if workload is not None else None
    if view is None:
        raise NotFound(f"there is no schedule {key}")
    return view


async def run_schedule(call: Call, project: str, name: str) -> WorkloadView:
    """Run once now, in addition to the ticks. `overlap` applies."""
    key = await call.ask(lambda number: RunNow(number, f"{project}/{name}"))
    state = call.engine.state
    run = state.workloads.get(key)
    if run is None:
        raise NotFound(f"{key} is over already and was not kept")
    return live_view(state, run, call.redactor.visible)
