"""Schedules: jobs that run again and again. When they are due, how their last runs went, and a run besides."""

from heapq import nlargest, nsmallest
from typing import Annotated, Any

import msgspec
from litestar import Request, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from roost.core.state import State
from roost.model.errors import NotFound
from roost.model.events import RunNow
from roost.model.schedule import next_tick
from roost.model.workload import Schedule, Workload
from roost.server.api.doors import ask, doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.auth_veil import Veil
from roost.server.views import WorkloadView, live_view

PAGE_MAX = 100  # schedules with ten ticks each: some fifty milliseconds
NEXT_MAX = 10
RUNS_MAX = 10  # shown of each, the last ones; all of them are workloads, and listed there

Coming = Annotated[int, QueryParameter(name="next", ge=0, le=NEXT_MAX, description="How many coming ticks to tell.")]


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run of a schedule, which is a workload of its own. `tick_ms`: the moment that it is for."""

    name: str
    state: str
    tick_ms: int
    finished_ms: int | None = None
    cause: str = ""


class ScheduleView(msgspec.Struct, frozen=True, kw_only=True):
    """A job with a schedule. `cause`: what it could not do at its last tick; of one that has ended, why."""

    project: str
    name: str
    cron: str
    zone: str
    overlap: str
    catch_up: int
    keep: int
    ended: bool
    cause: str = ""
    next_ms: list[int] = []  # the coming ticks
    last_ms: int | None = None  # the tick of the last run
    runs: list[RunView] = []  # the last ones, newest first


class SchedulePage(msgspec.Struct, frozen=True):
    """Schedules by project and name. There are more as long as `next` is given, which goes into `after`."""

    revision: int
    items: list[ScheduleView]
    next: str | None = None


@get("/v1/schedules", operation_id="list_schedules", responses=refusals(403, 422, 503))
async def list_schedules(
    request: Request[Any, Any, Any],
    project: FromQuery[str] = "",
    coming: Coming = 1,
    limit: Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")] = PAGE_MAX,
    after: Annotated[str, QueryParameter(description="`next` of the page before.")] = "",
) -> SchedulePage:
    """List schedules with their next ticks and their last runs."""
    state, veil = await doors_of(request).engine.settled(), veil_of(request)
    seen = (key for key in state.schedules if veil.sees(key) and (not project or key.startswith(f"{project}/")))
    keys = nsmallest(limit + 1, (key for key in seen if key > after))
    more = keys[limit - 1] if len(keys) > limit else None
    return SchedulePage(
        state.revision, [schedule_view(state, veil, state.workloads[key], coming) for key in keys[:limit]], more
    )


@get(
    "/v1/schedules/{project:str}/{name:str}", operation_id="get_schedule", responses=refusals(403, 404, 422, 503)
)  # fmt: skip
async def get_schedule(
    request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str], coming: Coming = 1
) -> ScheduleView:
    """Look at one schedule."""
    state = await doors_of(request).engine.settled()
    key = f"{project}/{name}"
    if key not in state.schedules:
        raise NotFound(f"there is no schedule {key}")
    return schedule_view(state, veil_of(request), state.workloads[key], coming)


@post(
    "/v1/schedules/{project:str}/{name:str}/run",
    operation_id="run_schedule",
    responses=refusals(403, 404, 409, 422, 503),
)
async def run_schedule(request: Request[Any, Any, Any], project: FromPath[str], name: FromPath[str]) -> WorkloadView:
    """Run once now, besides the ticks. Where a run before is not over, the schedule's own rule holds."""
    key = await ask(request, lambda number: RunNow(number, f"{project}/{name}"))
    state = doors_of(request).engine.state
    run = state.workloads.get(key)
    if run is None:
        raise NotFound(f"{key} is over already and was not kept")
    return veil_of(request).workload(live_view(state, run))


def schedule_view(state: State, veil: Veil, workload: Workload, coming: int) -> ScheduleView:
    """A schedule as it stands."""
    schedule = workload.policy.schedule
    assert schedule is not None, f"{workload.key} has no schedule"
    runs = [state.workloads[each] for each in state.runs.get(workload.key, ())]
    last = nlargest(RUNS_MAX, runs, key=lambda each: each.serial)
    return ScheduleView(
        project=workload.project,
        name=workload.name,
        cron=schedule.cron,
        zone=schedule.zone,
        overlap=schedule.overlap,
        catch_up=schedule.catch_up,
        keep=schedule.keep,
        ended=bool(workload.rest),
        cause=veil.words(workload.cause),
        next_ms=_coming(schedule, workload.tick_ms, coming) if not workload.rest else [],
        last_ms=max((each.tick_ms for each in runs), default=None),
        runs=[_run_view(state, veil, each) for each in last],
    )


def _coming(schedule: Schedule, after_ms: int, coming: int) -> list[int]:
    found: list[int] = []
    while len(found) < coming and (tick := next_tick(schedule, found[-1] if found else after_ms)) is not None:
        found.append(tick)
    return found


def _run_view(state: State, veil: Veil, run: Workload) -> RunView:
    view = live_view(state, run)
    return RunView(
        name=run.name,
        state=view.state,
        tick_ms=run.tick_ms,
        finished_ms=view.finished_ms,
        cause=veil.words(view.cause),
    )
