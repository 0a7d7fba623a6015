"""Events: what happened, to whom, when and why. To be searched, and followed as it comes."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated, Any

import msgspec
from litestar import Request, get
from litestar.params import FromQuery, HeaderParameter, QueryParameter
from litestar.response import Stream

from roost.model.access import OPERATOR
from roost.model.errors import Invalid, NoService
from roost.model.kept import KEPT
from roost.server import sse
from roost.server.api.changes import EVENT_STREAM, HEADERS
from roost.server.api.doors import doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.api.history import After, PageLimit, Since, Until, period_of, seen_projects
from roost.server.api.permissions import principal_of, while_permitted
from roost.server.auth_veil import Veil
from roost.server.history import FOLLOW_PAUSE_S, History, needed
from roost.server.history_rows import ABOUT
from roost.server.history_search import (
    EventsWanted,
    EventView,
    Period,
    Projects,
    events_after,
    last_event,
    search_events,
)

BURST_MAX = 1_000  # events read at once for one who follows
INDEX_MAX = 1 << 31
ID = r"^[0-9]{1,18}$"

Index = Annotated[int | None, QueryParameter(ge=0, le=INDEX_MAX, description="Only of this instance.")]
Kind = Annotated[str, QueryParameter(max_length=100, description="What it happened to: instance, workload, node, ...")]
What = Annotated[str, QueryParameter(max_length=100, description="What happened: placed, failed, lost, submit, ...")]


class EventPage(msgspec.Struct, frozen=True):
    """Events, newest first. There are more as long as `next` is given; a page may be short."""

    items: list[EventView]
    next: str | None = None


@get("/v1/events", operation_id="events", responses=refusals(403, 404, 422, 503))
async def events(
    request: Request[Any, Any, Any],
    project: FromQuery[str] = "",
    workload: FromQuery[str] = "",
    index: Index = None,
    node: FromQuery[str] = "",
    kind: Kind = "",
    what: What = "",
    since: Since = "",
    until: Until = "",
    limit: PageLimit = 100,
    after: After = "",
) -> EventPage:
    """Search what happened, newest first."""
    doors, veil = doors_of(request), veil_of(request)
    period = period_of(since, until, doors.engine.clock.now_ms())
    wanted = _wanted(request, project, workload, index, node, kind, what, period)
    items, following = await needed(doors.history).read(search_events, wanted, limit, after, seen_projects(request))
    return EventPage([_veiled(each, veil) for each in items], following)


@get("/v1/events/follow", operation_id="follow_events", media_type=EVENT_STREAM, responses=refusals(403, 404, 422, 503))
async def follow_events(
    request: Request[Any, Any, Any],
    project: FromQuery[str] = "",
    workload: FromQuery[str] = "",
    index: Index = None,
    node: FromQuery[str] = "",
    kind: Kind = "",
    what: What = "",
    since: Annotated[
        str | None, QueryParameter(pattern=ID, description="Go on after the event with this `id`.")
    ] = None,
    last: Annotated[str | None, HeaderParameter(name="Last-Event-ID", pattern=ID)] = None,
) -> Stream:
    """Follow what happens as server-sent events, in the order it was written; from now on, or after an id.

    `happened`: an event. `stopping`: the server is, come back with the last id.
    """
    kept = needed(doors_of(request).history)
    wanted = _wanted(request, project, workload, index, node, kind, what, Period())
    told = last or since
    position = int(told) if told else await kept.read(last_event)
    source = _follow(kept, wanted, position, seen_projects(request), veil_of(request))
    stream = while_permitted(principal_of(request), sse.kept_alive(source))
    return Stream(stream, media_type=EVENT_STREAM, headers=HEADERS)


async def _follow(
    history: History, wanted: EventsWanted, position: int, projects: Projects, veil: Veil
) -> AsyncGenerator[bytes, None]:
    yield sse.mark(str(position))
    while not history.closed:
        news = asyncio.ensure_future(history.news())  # before the look: what comes meanwhile is not missed
        try:
            items, seen = await history.read(events_after, wanted, position, BURST_MAX, projects)
            frames = [sse.event(_veiled(each, veil), event="happened", id=str(each.id)) for each in items]
            if seen > position:
                position = seen
                yield b"".join(frames) + sse.mark(str(position))
                continue
            await news
            await asyncio.sleep(FOLLOW_PAUSE_S)
        except NoService as error:
            yield sse.event({"message": error.message}, event="stopping")
            return
        finally:
            news.cancel()
    yield sse.event({"message": "the server is stopping"}, event="stopping")


def _wanted(
    request: "Request[Any, Any, Any]", project: str, workload: str, index: int | None, node: str, kind: str, what: str,
    period: Period,
) -> EventsWanted:  # fmt: skip
    if kind and kind not in ABOUT:
        raise Invalid("kind", f"an event is about {', '.join(ABOUT)}; not {kind!r:.60}")
    if index is not None and not workload:
        raise Invalid("index", "an instance is one of a workload: name that too")
    # Who asked for what is for operators, like the audit log itself.
    hidden = () if principal_of(request).access.everywhere >= OPERATOR else tuple(KEPT)
    return EventsWanted(project, workload, index, node, kind, what, period, hidden)


def _veiled(event: EventView, veil: Veil) -> EventView:
    return event if veil.is_open else msgspec.structs.replace(event, words=veil.words(event.words))
