"""The history: workloads that are over, all that had a name, and which commit a time means."""

from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import FromPath, FromQuery, QueryParameter

from roost.model.errors import Invalid
from roost.model.states import InstanceState
from roost.model.units import duration_ms, is_moment, moment_ms
from roost.server.api.at import At
from roost.server.api.doors import doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of
from roost.server.api.workloads import WorkloadState
from roost.server.history import Moment, needed
from roost.server.history_search import (
    OverDetail,
    OverView,
    Period,
    Projects,
    instances_of,
    lives_of,
    search_workloads,
)  # fmt: skip
from roost.server.views import InstanceDetail

PAGE_MAX = 1_000
DETAILS_MAX = 100  # with documents of half a megabyte each
SERIAL_MAX = 1 << 62

PageLimit = Annotated[int, QueryParameter(ge=1, le=PAGE_MAX, description="How many at most.")]
DetailLimit = Annotated[int, QueryParameter(ge=1, le=DETAILS_MAX, description="How many at most.")]
Since = Annotated[str, QueryParameter(max_length=100, description="From then on: RFC 3339, or a duration ago (`2h`).")]
Until = Annotated[str, QueryParameter(max_length=100, description="Until before then: RFC 3339, or a duration ago.")]
After = Annotated[str, QueryParameter(max_length=100, description="`next` of the page before.")]


class OverPage(msgspec.Struct, frozen=True):
    """Workloads that are over, newest first. There are more as long as `next` is given; a page may be short."""

    items: list[OverView]
    next: str | None = None


class LifePage(msgspec.Struct, frozen=True):
    """All workloads of one name that are over, newest first."""

    items: list[OverDetail]
    next: int | None = None


class OverInstancePage(msgspec.Struct, frozen=True):
    """Instances of a workload that is over, by index."""

    items: list[InstanceDetail]
    next: int | None = None


class MomentView(msgspec.Struct, frozen=True, kw_only=True):
    """What a time means: `token` goes into `at`, and is the same commit whenever it is used."""

    token: str
    revision: int
    at_ms: int
    earliest_ms: int | None
    gap: str = ""


@get("/v1/history", operation_id="history", responses=refusals(403, 404, 422, 503))
async def history(
    request: Request[Any, Any, Any],
    project: FromQuery[str] = "",
    name: Annotated[str, QueryParameter(max_length=100, description="How the name begins.")] = "",
    only: Annotated[WorkloadState | None, QueryParameter(name="state")] = None,
    since: Since = "",
    until: Until = "",
    limit: PageLimit = 100,
    after: After = "",
) -> OverPage:
    """Search workloads that are over, newest first."""
    doors, veil = doors_of(request), veil_of(request)
    period = period_of(since, until, doors.engine.clock.now_ms())
    items, following = await needed(doors.history).read(
        search_workloads, project, name, only or "", period, limit, after, seen_projects(request)
    )
    return OverPage([msgspec.structs.replace(each, cause=veil.words(each.cause)) for each in items], following)


@get("/v1/history/at", operation_id="moment", responses=refusals(403, 404, 422, 503))
async def moment(request: Request[Any, Any, Any], at: At = "0s") -> MomentView:
    """Which commit a time means, so that several questions can be about the same."""
    doors = doors_of(request)
    kept = needed(doors.history)
    found: Moment = await kept.moment(at, doors.engine.clock.now_ms())
    earliest_ms = await kept.earliest_ms()
    return MomentView(
        token=found.token, revision=found.revision, at_ms=found.at_ms, earliest_ms=earliest_ms, gap=found.gap
    )


@get("/v1/history/{project:str}/{name:str}", operation_id="get_history", responses=refusals(403, 404, 422, 503))
async def get_history(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    limit: DetailLimit = 10,
    after: Annotated[int, QueryParameter(ge=0, le=SERIAL_MAX, description="`next` of the page before.")] = SERIAL_MAX,
) -> LifePage:
    """Everything of one name that is over, newest first, with its document."""
    doors, veil = doors_of(request), veil_of(request)
    items, following = await needed(doors.history).read(lives_of, project, name, limit, after, seen_projects(request))
    return LifePage([msgspec.structs.replace(each, cause=veil.words(each.cause)) for each in items], following)


@get(
    "/v1/history/{project:str}/{name:str}/{serial:int}/instances",
    operation_id="history_instances",
    responses=refusals(403, 404, 422, 503),
)
async def history_instances(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    serial: FromPath[int],
    only: Annotated[InstanceState | None, QueryParameter(name="state")] = None,
    limit: DetailLimit = 100,
    after: Annotated[int, QueryParameter(ge=-1, le=SERIAL_MAX, description="`next` of the page before.")] = -1,
) -> OverInstancePage:
    """The instances of a workload that is over, each with its story and the decision that placed it."""
    if not 0 <= serial <= SERIAL_MAX:
        raise Invalid("serial", f"a serial is 0 to {SERIAL_MAX}")
    doors, veil = doors_of(request), veil_of(request)
    items, following = await needed(doors.history).read(
        instances_of, project, name, serial, only or "", limit, after, seen_projects(request)
    )
    return OverInstancePage([veil.instance(each) for each in items], following)


def seen_projects(request: "Request[Any, Any, Any]") -> Projects:
    """The projects whose past whoever asks may see; None: all of them."""
    access = principal_of(request).access
    return None if access.sees_all else frozenset(access.ranks)


def period_of(since: str, until: str, now_ms: int) -> Period:
    """A period from how people write it."""
    whole = Period()
    return Period(
        _moment_ms(since, "since", now_ms) if since else whole.since_ms,
        _moment_ms(until, "until", now_ms) if until else whole.until_ms,
    )


def _moment_ms(text: str, path: str, now_ms: int) -> int:
    return moment_ms(text, path, now_ms) if is_moment(text) else now_ms - duration_ms(text, path)
