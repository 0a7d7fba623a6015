"""Logs: what instances write, read in pieces or followed as it comes."""

from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from msgspec import Meta

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.records.workload import Workload
from roost.model.states import FINISHED
from roost.server.agents.log_store import LogEnd
from roost.server.operations.context import Call, Context
from roost.server.operations.parameters import OFFSET_MAX, Attempt
from roost.server.operations.work.log_follower import LogEvent, LogStreamer, log_end, log_name
from roost.server.views.work import instance_detail

READ_BYTES = 1 << 20
READ_BYTES_MAX = 8 << 20  # as much as a request may bring; held in memory while it is sent


class LogSlice(msgspec.Struct, frozen=True):
    """Bytes of the log of one attempt, how many there are so far, and whether no more will come."""

    data: bytes
    size: int
    attempt: int
    finished: bool
    missing: int = 0  # bytes that the node has reported and not sent so far


async def read_log(
    call: Call,
    project: str,
    name: str,
    index: int,
    attempt: Attempt = 0,
    offset: Annotated[int, Meta(ge=-OFFSET_MAX, le=OFFSET_MAX, description="Below 0: from the end.")] = 0,
    limit: Annotated[int, Meta(ge=0, le=READ_BYTES_MAX)] = READ_BYTES,
) -> LogSlice:
    """Read a part of the log of an instance."""
    context = call.context
    workload = await call.workload(project, name)
    attempt, end = _attempt(call.engine.state, workload, index, attempt)
    if not attempt:
        return LogSlice(b"", 0, 0, end.over)
    log = log_name(workload, index, attempt)
    await _fetch(context, log, end)
    if limit and context.logs.missing(log, end):  # they are on their way: a reader must not take this for the end
        await context.logs.arrived(log, offset if offset >= 0 else OFFSET_MAX, end)
    size = context.logs.size(log) or 0
    start = max(0, size + offset) if offset < 0 else offset
    data = context.logs.read(log, start, limit) if start < size else b""
    return LogSlice(data, size, attempt, context.logs.finished(log, end), context.logs.missing(log, end))


async def follow_log(
    call: Call,
    project: str,
    name: str,
    index: int,
    attempt: Attempt = 0,
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] = 0,
) -> AsyncGenerator[LogEvent, None]:
    """Follow the log of an instance as server-sent events.

    An event without a name carries a piece, in base64; its id is ATTEMPT.OFFSET of what comes next. `attempt`: the
    instance runs again, its next log begins. `missing`: the end of a log that its node has not sent. `end`: it ended,
    and how. `stopping`: the server stops, reconnect.
    """
    workload = await call.workload(project, name)
    attempt, end = _attempt(call.engine.state, workload, index, attempt)
    await _fetch(call.context, log_name(workload, index, attempt), end)
    return LogStreamer(call, workload, index, attempt, offset).events()


async def _fetch(context: Context, log: str, end: LogEnd) -> None:
    """What is not here of a log that is over may be with the server that led when it was sent."""
    if context.peers is None or not end.over:
        return
    if context.logs.missing(log, end) or (end.size is None and context.logs.size(log) is None):
        await context.peers.fetch_log(log, OFFSET_MAX if end.size is None else end.size)


def _attempt(state: State, workload: Workload, index: int, attempt: int) -> tuple[int, LogEnd]:
    """The attempt that is asked for, 0 when there was none yet; and its end."""
    view = instance_detail(state, workload, index)
    if attempt > max(1, view.attempt):  # the first attempt can be followed before it begins
        raise NotFound(f"{workload.key}.{index} had {view.attempt} attempts, not {attempt}")
    if not view.attempt:
        return 0, LogEnd(view.state in FINISHED)
    attempt = attempt or view.attempt
    return attempt, log_end(state.instances[f"{workload.key}.{index}"], attempt)
