"""The history: workloads that are over, all that had a name, and which commit a time means."""

from typing import Annotated

from msgspec import Meta

from roost.model.errors import Invalid
from roost.model.spec.units import duration_ms, is_moment, moment_ms
from roost.model.states import InstanceState
from roost.schema.history import LifePage, MomentView, OverInstancePage, OverPage
from roost.server.history.as_of import earliest_ms
from roost.server.history.search import Period, Projects, instances_of, lives_of, search_workloads
from roost.server.history.service import needed
from roost.server.operations.context import Call
from roost.server.operations.parameters import (
    SERIAL_MAX,
    AfterIndex,
    AfterRow,
    At,
    DetailLimit,
    Limit,
    Since,
    Until,
    WorkloadState,
)


async def history(
    call: Call,
    project: str = "",
    name: Annotated[str, Meta(max_length=100, description="How the name begins.")] = "",
    only: WorkloadState | None = None,
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
    after: AfterRow = "",
) -> OverPage:
    """Search finished workloads, newest first."""
    context = call.context
    period = period_of(since, until, context.engine.clock.now_ms())
    items, following = await needed(context.history).read(
        search_workloads, project, name, only or "", period, limit, after, seen_projects(call)
    )
    return OverPage(items, following)


async def moment(call: Call, at: At = "0s") -> MomentView:
    """The commit of a time, so that several requests can use the same."""
    context = call.context
    kept = needed(context.history)
    found = await kept.moment(at, context.engine.clock.now_ms())
    first_ms = await kept.read(earliest_ms)
    return MomentView(
        token=found.token, revision=found.revision, at_ms=found.at_ms, earliest_ms=first_ms, gap=found.gap
    )


async def get_history(
    call: Call, project: str, name: str, limit: DetailLimit = 10, after: AfterIndex = SERIAL_MAX
) -> LifePage:
    """Finished workloads of one name, newest first, with their documents."""
    context = call.context
    items, following = await needed(context.history).read(lives_of, project, name, limit, after, seen_projects(call))
    return LifePage(items, following)


async def history_instances(
    call: Call,
    project: str,
    name: str,
    serial: int,
    only: InstanceState | None = None,
    limit: DetailLimit = 100,
    after: AfterIndex = -1,
) -> OverInstancePage:
    """The instances of a finished workload, each with its story and its decision."""
    if not 0 <= serial <= SERIAL_MAX:
        raise Invalid("serial", f"a serial is 0 to {SERIAL_MAX}")
    context = call.context
    items, following = await needed(context.history).read(
        instances_of, project, name, serial, only or "", limit, after, seen_projects(call)
    )
    return OverInstancePage(items, following)


def seen_projects(call: Call) -> Projects:
    """The projects whose past the caller may see; None: all of them."""
    access = call.principal.access
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
