"""Logs: what instances write, read in pieces or followed as it comes."""

from collections.abc import AsyncGenerator
from typing import Annotated

import msgspec
from msgspec import Meta

from roost.core.state.state import State
from roost.model.errors import NotFound
from roost.model.records.workload import Workload
from roost.model.states import ALLOCATED, FINISHED
from roost.server.operations.context import Call, Context
from roost.server.operations.parameters import OFFSET_MAX, Attempt
from roost.server.operations.work.log_follower import LogEvent, LogStreamer, log_name
from roost.server.views.work import instance_detail

READ_BYTES = 1 << 20
READ_BYTES_MAX = 8 << 20  # as much as a request may bring; held in memory while it is sent


class LogSlice(msgspec.Struct, frozen=True):
    """Bytes of the log of one attempt, how many there are so far, and whether no more will come."""

    data: bytes
    size: int
    attempt: int
    finished: bool


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
    attempt, over = _attempt(call.engine.state, workload, index, attempt)
    log = log_name(workload, index, attempt)
    await _fetch(context, log, over)
    size = context.logs.size(log) or 0
    start = max(0, size + offset) if offset < 0 else offset
    data = context.logs.read(log, start, limit) if start < size else b""
    return LogSlice(data, size, attempt, context.logs.finished(log, over) if attempt else over)


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
    instance runs again, its next log begins. `end`: it ended, and how. `stopping`: the server stops, reconnect.
    """
    workload = await call.workload(project, name)
    attempt, over = _attempt(call.engine.state, workload, index, attempt)
    await _fetch(call.context, log_name(workload, index, attempt), over)
    return LogStreamer(call, workload, index, attempt, offset).events()


async def _fetch(context: Context, log: str, over: bool) -> None:
    """A log that is complete and not here may be with the server that led when it was sent."""
    if over and context.peers is not None and context.logs.size(log) is None:
        await context.peers.fetch_log(log)


def _attempt(state: State, workload: Workload, index: int, attempt: int) -> tuple[int, bool]:
    """The attempt that is asked for, 0 when there was none yet; and whether it is over."""
    instance = instance_detail(state, workload, index)
    if attempt > instance.attempt:
        raise NotFound(f"{workload.key}.{index} had {instance.attempt} attempts, not {attempt}")
    over = instance.state not in ALLOCATED if instance.attempt else instance.state in FINISHED
    return attempt or instance.attempt, over or 0 < attempt < instance.attempt
