"""Events: what happened, to which object, when and why; and every commit as it is made."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from roost.model.errors import Invalid, NoService
from roost.model.records.access import OPERATOR
from roost.model.records.opaque import OPAQUE_KINDS
from roost.schema.history import EventPage, EventView
from roost.server.feed.change_log import KINDS, UNKNOWN, ChangeFilter, FeedUpdate
from roost.server.history.projection import ABOUT
from roost.server.history.search import EventsWanted, Period, Projects, events_after, last_event, search_events
from roost.server.history.service import FOLLOW_PAUSE_S, History, needed
from roost.server.operations.context import Call, period_of, search, seen_projects
from roost.server.operations.parameters import AfterRow, Limit, OfInstance, Since, Until

BURST_MAX = 1_000  # events read at once for one who follows
ID_MAX = 10**18 - 1

Kind = Annotated[str, Meta(max_length=100, description="What it happened to: instance, workload, node, ...")]
What = Annotated[str, Meta(max_length=100, description="What happened: placed, failed, lost, submit, ...")]
AfterEvent = Annotated[int, Meta(ge=0, le=ID_MAX, description="Go on after the event with this `id`.")] | None


async def events(
    call: Call,
    project: str = "",
    workload: str = "",
    index: OfInstance = None,
    node: str = "",
    kind: Kind = "",
    what: What = "",
    since: Since = "",
    until: Until = "",
    limit: Limit = 100,
    after: AfterRow = "",
) -> EventPage:
    """Search events, newest first."""
    wanted = _wanted(call, project, workload, index, node, kind, what, period_of(since, until, call.now_ms))
    return EventPage(*await search(call, search_events, wanted, limit, after))


class EventBatch(msgspec.Struct, frozen=True):
    """Events in the order in which they were written, and the id to resume after."""

    items: list[EventView]
    position: int


async def follow_events(
    call: Call,
    project: str = "",
    workload: str = "",
    index: OfInstance = None,
    node: str = "",
    kind: Kind = "",
    what: What = "",
    since: AfterEvent = None,
) -> AsyncGenerator[EventBatch, None]:
    """Follow events as server-sent events, from now on or after an ID.

    `happened`: an event. `stopping`: the server stops, reconnect with the last id.
    """
    history = needed(call.context.history)
    wanted = _wanted(call, project, workload, index, node, kind, what, Period())
    position = await history.read(last_event) if since is None else since
    return _follow(history, wanted, position, seen_projects(call))


async def _follow(
    history: History, wanted: EventsWanted, position: int, projects: Projects
) -> AsyncGenerator[EventBatch, None]:
    yield EventBatch([], position)
    while not history.closed:
        update = asyncio.ensure_future(history.written.wait())  # before the search: what comes meanwhile is not missed
        try:
            items, seen = await history.read(events_after, wanted, position, BURST_MAX, projects)
            if seen > position:
                position = seen
                yield EventBatch(items, position)
                continue
            await update
            await asyncio.sleep(FOLLOW_PAUSE_S)
        finally:
            update.cancel()
    raise NoService("the server is stopping")


def _wanted(
    call: Call, project: str, workload: str, index: int | None, node: str, kind: str, what: str,
    period: Period,
) -> EventsWanted:  # fmt: skip
    if kind and kind not in ABOUT:
        raise Invalid("kind", f"an event is about {', '.join(ABOUT)}; not {kind!r:.60}")
    if index is not None and not workload:
        raise Invalid("index", "an instance is one of a workload: name that too")
    # Who asked for what is for operators, like the audit log itself.
    hidden = () if call.principal.access.everywhere >= OPERATOR else tuple(OPAQUE_KINDS)
    return EventsWanted(project, workload, index, node, kind, what, period, hidden)


SINCE = r"^([0-9]{1,18}(-[0-9]{1,20})?)?$"

RecordKind = Literal["workload", "instance", "node", "pool", "project", "reservation"]


async def changes(
    call: Call,
    since: Annotated[
        str, Meta(pattern=SINCE, description="Resume after this `revision` of a list or `id` of an event.")
    ] = "",
    kind: Annotated[list[RecordKind], Meta(description="Only these. Default: workloads, instances and nodes.")]
    | None = None,
    workload: Annotated[str, Meta(description="PROJECT/NAME: only this workload and its instances.")] = "",
    prefix: Annotated[str, Meta(description="Only workloads whose PROJECT/NAME begins so.")] = "",
) -> AsyncGenerator[FeedUpdate, None]:
    """Follow changes as server-sent events.

    `change`: {revision, kind, key, what: put or gone, object}. `reset`: changes since then are not available, list
    again. `stopping`: the server stops, reconnect. Changes of one commit share a revision and are sent together.
    The object of a pool, a project or a reservation is what was set; its view is at its own path.
    """
    await call.state()
    watch = call.context.watch
    if (revision := watch.revision_of(since)) != UNKNOWN:
        await call.engine.reach(revision)
    return watch.follow(since, ChangeFilter(frozenset(kind or KINDS), workload, call.redactor, prefix))
