"""The history: workloads that are over, all that had a name, and which commit a time means."""

from typing import Annotated

from msgspec import Meta

from roost.model.errors import Invalid
from roost.model.states import InstanceState, WorkloadState
from roost.schema.history import LifePage, MomentView, OverInstancePage, OverPage
from roost.server.history.as_of import earliest_ms
from roost.server.history.search import instances_of, lives_of, search_workloads
from roost.server.history.service import needed
from roost.server.operations.context import Call, period_of, search
from roost.server.operations.parameters import (
    SERIAL_MAX,
    AfterIndex,
    AfterRow,
    At,
    DetailLimit,
    Limit,
    Since,
    Until,
)
from roost.server.views.view_of import view_of


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
    period = period_of(since, until, call.now_ms)
    return OverPage(*await search(call, search_workloads, project, name, only or "", period, limit, after))


async def moment(call: Call, at: At = "0s") -> MomentView:
    """The commit of a time, so that several requests can use the same."""
    kept = needed(call.context.history)
    return view_of(MomentView, await kept.moment(at, call.now_ms), earliest_ms=await kept.read(earliest_ms))


async def get_history(
    call: Call, project: str, name: str, limit: DetailLimit = 10, after: AfterIndex = SERIAL_MAX
) -> LifePage:
    """Finished workloads of one name, newest first, with their documents."""
    return LifePage(*await search(call, lives_of, project, name, limit, after))


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
    return OverInstancePage(*await search(call, instances_of, project, name, serial, only or "", limit, after))
