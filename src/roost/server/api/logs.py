"""Logs: what runs have written, byte for byte. Read a piece, or follow as it comes."""

from typing import Annotated, Any

from litestar import Request, Response, get
from litestar.datastructures import ResponseHeader
from litestar.params import FromPath, HeaderParameter, QueryParameter
from litestar.response import Stream

from roost.core.state import State
from roost.model.errors import NotFound
from roost.model.states import FINISHED, HOLDING
from roost.model.workload import Workload
from roost.server import sse
from roost.server.api.changes import EVENT_STREAM, HEADERS
from roost.server.api.doors import Doors, doors_of, find, veil_of
from roost.server.api.errors import refusals
from roost.server.api.follow import Follower, log_name
from roost.server.api.permissions import principal_of, while_permitted
from roost.server.views import instance_detail

READ_BYTES = 1 << 20
READ_BYTES_MAX = 8 << 20  # as much as a request may bring; held in memory while it is sent
OFFSET_MAX = 1 << 53  # exact in JSON

SIZE, OF_ATTEMPT, IS_FINISHED = "Roost-Log-Size", "Roost-Log-Attempt", "Roost-Log-Finished"

Attempt = Annotated[int, QueryParameter(ge=0, le=OFFSET_MAX, description="0: the newest.")]


@get(
    "/v1/workloads/{project:str}/{name:str}/instances/{index:int}/log",
    operation_id="read_log",
    media_type="application/octet-stream",
    responses=refusals(403, 404, 422, 503),
    response_headers=[
        ResponseHeader(name=SIZE, documentation_only=True, description="Bytes there are so far."),
        ResponseHeader(name=OF_ATTEMPT, documentation_only=True, description="The attempt whose log this is."),
        ResponseHeader(name=IS_FINISHED, documentation_only=True, description="true: no more will come."),
    ],
)
async def read_log(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    index: FromPath[int],
    attempt: Attempt = 0,
    offset: Annotated[int, QueryParameter(ge=-OFFSET_MAX, le=OFFSET_MAX, description="Below 0: from the end.")] = 0,
    limit: Annotated[int, QueryParameter(ge=0, le=READ_BYTES_MAX)] = READ_BYTES,
) -> Response[bytes]:
    """Read a piece of the log of an instance."""
    doors = doors_of(request)
    workload = await find(doors, project, name)
    attempt, over = _attempt(doors.engine.state, workload, index, attempt)
    log = log_name(workload, index, attempt)
    await _fetch(doors, log, over)
    size = doors.logs.size(log) or 0
    start = max(0, size + offset) if offset < 0 else offset
    data = doors.logs.read(log, start, limit) if start < size else b""
    finished = doors.logs.finished(log, over) if attempt else over
    told = {SIZE: str(size), OF_ATTEMPT: str(attempt), IS_FINISHED: str(finished).lower()}
    return Response(data, media_type="application/octet-stream", headers=told)


@get(
    "/v1/workloads/{project:str}/{name:str}/instances/{index:int}/log/follow",
    operation_id="follow_log",
    media_type=EVENT_STREAM,
    responses=refusals(403, 404, 422, 503),
)
async def follow_log(
    request: Request[Any, Any, Any],
    project: FromPath[str],
    name: FromPath[str],
    index: FromPath[int],
    attempt: Attempt = 0,
    offset: Annotated[int, QueryParameter(ge=0, le=OFFSET_MAX)] = 0,
    last: Annotated[str | None, HeaderParameter(name="Last-Event-ID")] = None,
) -> Stream:
    """Follow the log of an instance as server-sent events.

    An event without a name carries a piece, in base64; its id is ATTEMPT.OFFSET of what comes next. `attempt`: the
    instance runs again, its next log begins. `end`: it is over, and how. `stopping`: the server is, come back.
    """
    doors = doors_of(request)
    workload = await find(doors, project, name)
    attempt, offset = _resumed(last, attempt, offset)
    attempt, over = _attempt(doors.engine.state, workload, index, attempt)
    await _fetch(doors, log_name(workload, index, attempt), over)
    follower = Follower(doors, workload, index, attempt, offset, veil_of(request))
    events = while_permitted(principal_of(request), sse.kept_alive(follower.events()))
    return Stream(events, media_type=EVENT_STREAM, headers=HEADERS)


async def _fetch(doors: Doors, log: str, over: bool) -> None:
    """A log that is complete and not here may be with the server that led when it was sent."""
    if over and doors.peers is not None and doors.logs.size(log) is None:
        await doors.peers.fetch_log(log)


def _attempt(state: State, workload: Workload, index: int, attempt: int) -> tuple[int, bool]:
    """The attempt that is asked for, 0 when there was none yet; and whether it is over."""
    instance = instance_detail(state, workload, index)
    if attempt > instance.attempt:
        raise NotFound(f"{workload.key}.{index} had {instance.attempt} attempts, not {attempt}")
    over = instance.state not in HOLDING if instance.attempt else instance.state in FINISHED
    return attempt or instance.attempt, over or 0 < attempt < instance.attempt


def _resumed(last: str | None, attempt: int, offset: int) -> tuple[int, int]:
    """Where a reader that comes back wants to go on; what it cannot have got from here is not listened to."""
    told, _, place = (last or "").partition(".")
    if told.isascii() and told.isdigit() and place.isascii() and place.isdigit() and len(told + place) <= 30:
        return int(told), min(int(place), OFFSET_MAX)
    return attempt, offset
