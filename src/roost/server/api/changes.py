"""Changes: everything that is committed, as it happens."""

from typing import Annotated, Any, Literal

from litestar import Request, get
from litestar.params import HeaderParameter, QueryParameter
from litestar.response import Stream

from roost.server import sse
from roost.server.api.doors import doors_of, veil_of
from roost.server.api.errors import refusals
from roost.server.api.permissions import principal_of, while_permitted
from roost.server.watch import KINDS, Wanted

SINCE = r"^[0-9]{1,18}(-[0-9]{1,20})?$"
EVENT_STREAM = "text/event-stream"
HEADERS = {"cache-control": "no-store", "x-accel-buffering": "no"}


@get("/v1/changes", operation_id="changes", media_type=EVENT_STREAM, responses=refusals(403, 422, 503))
async def changes(
    request: Request[Any, Any, Any],
    since: Annotated[
        str | None,
        QueryParameter(pattern=SINCE, description="Go on after this `revision` of a list or `id` of an event."),
    ] = None,
    kind: Annotated[
        list[Literal["workload", "instance", "node", "pool", "project", "reservation"]] | None,
        QueryParameter(description="Only these. Nothing said: workloads, instances and nodes."),
    ] = None,
    workload: Annotated[str, QueryParameter(description="PROJECT/NAME: only this workload and its instances.")] = "",
    prefix: Annotated[str, QueryParameter(description="Only workloads whose PROJECT/NAME begins so.")] = "",
    last: Annotated[str | None, HeaderParameter(name="Last-Event-ID")] = None,
) -> Stream:
    """Follow changes as server-sent events.

    `change`: {revision, kind, key, what: put or gone, object}. `reset`: what happened since then is not known any more,
    list again. `stopping`: the server is, come back. Changes of one commit share a revision and are sent together.
    Of a pool, a project or a reservation the object is what was set, not what has come of it: ask for it by its name.
    """
    doors = doors_of(request)
    await doors.engine.settled()
    wanted = Wanted(frozenset(kind or KINDS), workload, veil_of(request), prefix)
    events = while_permitted(principal_of(request), sse.kept_alive(doors.watch.follow(last or since or "", wanted)))
    return Stream(events, media_type=EVENT_STREAM, headers=HEADERS)
