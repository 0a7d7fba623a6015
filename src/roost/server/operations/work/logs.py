"""Logs: what instances write, read in pieces or followed as it comes."""

import asyncio
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from roost.core.state.state import State
from roost.core.state.versions import version_of
from roost.model.errors import Invalid, NoService, NotFound
from roost.model.keys import log_name
from roost.model.reasons.reason import Reason
from roost.model.records.instance import Instance
from roost.model.records.result import Result
from roost.model.records.workload import Workload
from roost.model.spec.document import masked_secrets, separates_stderr
from roost.model.spec.units import past_ms
from roost.model.states import FINISHED, LogStream
from roost.schema.feed import AttemptView, EndingView, MissingView
from roost.schema.logs import LogLinesView, LogLineView
from roost.schema.reason_text import ReasonView, message_of, reason_view
from roost.server.logs.ends import log_end
from roost.server.logs.lines import LineFilter, last_lines, next_lines, offset_since
from roost.server.logs.machine import LogEnd
from roost.server.logs.masking import Masker
from roost.server.logs.views import LogView
from roost.server.operations.context import Call, Context
from roost.server.operations.parameters import OFFSET_MAX, AnyStream, Attempt, OneStream, Since
from roost.server.views.outputs import outputs_summary
from roost.server.views.work import instance_detail
from roost.server.waiting import cancel, cancel_futures

READ_BYTES = 1 << 20
LINES_MAX = 10_000  # of one answer; 4 MiB are the limit for most
GREP_MAX = 1_000
READ_BYTES_MAX = 8 << 20  # as much as a request may bring; held in memory while it is sent


class LogSlice(msgspec.Struct, frozen=True):
    """Bytes of the log of one attempt, how many there are so far, and whether no more will come."""

    data: bytes
    size: int
    attempt: int
    finished: bool
    missing: int = 0  # bytes that the node has reported and not sent so far
    next: int = 0  # the offset after the data: masked data has another length than what it stands for


class LogEvent(msgspec.Struct, frozen=True):
    """Bytes of a log, what is missing of it, a further attempt, or the end.

    `attempt`, `offset` and, where both logs are followed, `stderr_offset`: where to resume after this event.
    """

    attempt: int
    offset: int
    stderr_offset: int = 0
    data: bytes = b""
    stream: LogStream = LogStream.STDOUT  # of the data
    missing: MissingView | None = None
    begun: AttemptView | None = None
    ending: EndingView | None = None


async def read_log(
    call: Call,
    project: str,
    name: str,
    index: int,
    attempt: Attempt = 0,
    offset: Annotated[int, Meta(ge=-OFFSET_MAX, le=OFFSET_MAX, description="Below 0: from the end.")] = 0,
    limit: Annotated[int, Meta(ge=0, le=READ_BYTES_MAX)] = READ_BYTES,
    stream: OneStream = "stdout",
) -> LogSlice:
    """Read a part of a log of an instance."""
    context = call.context
    workload = await call.workload(project, name)
    state, wanted = call.engine.state, LogStream(stream)
    attempt, end = _attempt(state, workload, index, attempt, wanted)
    if not attempt or wanted not in streams_of(state, workload, index, attempt):
        return LogSlice(b"", 0, attempt, end.over)
    log = log_name(workload.key, workload.serial, index, attempt, wanted)
    await _fetch(context, log, end)
    if limit and context.logs.missing(log, end):  # they are on their way: a reader must not take this for the end
        await context.logs.arrived(log, offset if offset >= 0 else OFFSET_MAX, end)
    size, finished, missing = context.logs.status(log, end)
    view = LogView(context.logs, log, masker_of(call, workload))
    if not finished:
        size -= await view.held_back(size)
    start = max(0, size + offset) if offset < 0 else offset
    if limit and missing and size <= start < size + missing:
        raise _elsewhere(call, workload, index, attempt, log, missing)
    data, following = await view.read(start, min(limit, max(0, size - start)))
    return LogSlice(data, size, attempt, finished, missing, following)


async def log_lines(
    call: Call,
    project: str,
    name: str,
    index: int,
    attempt: Attempt = 0,
    stream: OneStream = "stdout",
    since: Annotated[Since, Meta(description="Lines that came then or later: RFC 3339, or a duration ago.")] = "",
    grep: Annotated[str, Meta(max_length=GREP_MAX, description="Only lines that have this text.")] = "",
    tail: Annotated[int, Meta(ge=-1, le=LINES_MAX, description="Only the last so many; -1: all.")] = -1,
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="`next` of the answer before.")] = 0,
    limit: Annotated[int, Meta(ge=1, le=LINES_MAX)] = LINES_MAX,
) -> LogLinesView:
    """Search the log of an instance for lines by time, text or from its end.

    An answer has at most 4 MiB and searches at most 64 MiB; continue with `next`, without `tail`.
    """
    if "\n" in grep:
        raise Invalid("grep", "this is searched line by line, and cannot have a newline")
    workload = await call.workload(project, name)
    since_ms = past_ms(since, "since", call.now_ms) if since else 0
    state, wanted, logs = call.engine.state, LogStream(stream), call.context.logs
    attempt, end = _attempt(state, workload, index, attempt, wanted)
    if not attempt or wanted not in streams_of(state, workload, index, attempt):
        return LogLinesView(attempt, [], 0, 0, end.over)
    log = log_name(workload.key, workload.serial, index, attempt, wanted)
    await _fetch(call.context, log, end)
    if logs.missing(log, end):
        await logs.arrived(log, offset, end)
    size, finished, missing = logs.status(log, end)
    if missing and size <= offset:
        raise _elsewhere(call, workload, index, attempt, log, missing)
    start = min(offset, size)
    if since_ms:
        start = max(start, await offset_since(logs, log, since_ms, size))
    filter = LineFilter(grep.encode(), masker_of(call, workload))
    if tail >= 0:
        found = await last_lines(logs, log, start, size, filter, tail)
    else:
        found = await next_lines(logs, log, start, size, filter, limit)
    lines = [LogLineView(line.offset, line.at_ms, b64encode(line.data).decode()) for line in found.lines]
    return LogLinesView(attempt, lines, found.next, size, finished, missing)


async def follow_log(
    call: Call,
    project: str,
    name: str,
    index: int,
    attempt: Attempt = 0,
    offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX)] = 0,
    stream: AnyStream = "stdout",
    stderr_offset: Annotated[int, Meta(ge=0, le=OFFSET_MAX, description="With `all`: of stderr.")] = 0,
) -> AsyncGenerator[LogEvent, None]:
    """Follow the log of an instance as server-sent events.

    An event without a name carries a piece of stdout, in base64, an event `stderr` one of stderr. Its id is
    ATTEMPT.OFFSET of what comes next, with `all` ATTEMPT.OFFSET[.STDERR_OFFSET]. `attempt`: the instance runs again,
    its next log begins. `missing`: the end of a log that its node has not sent. `end`: it ended, and how.
    `stopping`: the server stops, reconnect.
    """
    workload = await call.workload(project, name)
    wanted = tuple(LogStream) if stream == "all" else (LogStream(stream),)
    attempt, _ = _attempt(call.engine.state, workload, index, attempt)
    offsets = dict(zip(wanted, (offset, stderr_offset), strict=False))
    return LogStreamer(call, workload, index, attempt, offsets).events()


def _elsewhere(call: Call, workload: Workload, index: int, attempt: int, log: str, missing: int) -> NoService:
    """The state knows of bytes that are not here: say where they can be."""
    state = call.engine.state
    instance = state.instances.get(f"{workload.key}.{index}")
    node = _node_of(instance, attempt) if instance is not None else ""
    others = [name for name in state.meta.leaders if name != state.settings.server]
    where = f"node {node} has not sent them" if node else "their node has not sent them"
    if others:
        where += f"; or they are on a server that led before and is away: {', '.join(others)}"
    message = f"{missing:,} bytes of log {log} are not on this server: {where}"
    return NoService(message, code="log_unavailable", params={"log": log, "missing": missing, "servers": others})


def masker_of(call: Call, workload: Workload) -> Masker:
    """Masks the secrets of a workload if its document asks for that."""
    names = masked_secrets(workload.document)
    return Masker(call.context.secrets.values(workload.project, names) if names else ())


async def _fetch(context: Context, log: str, end: LogEnd) -> None:
    """What is not here of a log that is over may be with the server that led when it was sent."""
    await context.logs.list_segments(log)
    if not context.logs.wanted(log, end):
        return
    await context.logs.list_segments(log, again=True)  # another server may have sealed it since
    wanted = context.logs.wanted(log, end)
    if context.peers is not None and wanted:
        await context.peers.fetch_log(log, wanted)


def _attempt(
    state: State, workload: Workload, index: int, attempt: int, stream: LogStream = LogStream.STDOUT
) -> tuple[int, LogEnd]:
    """The attempt that is asked for, 0 when there was none yet; and its end."""
    view = instance_detail(state, workload, index)
    if attempt > max(1, view.attempt):  # the first attempt can be followed before it begins
        raise NotFound(f"{workload.key}.{index} had {view.attempt} attempts, not {attempt}")
    if not view.attempt:
        return 0, LogEnd(view.state in FINISHED)
    attempt = attempt or view.attempt
    return attempt, log_end(state.instances[f"{workload.key}.{index}"], attempt, stream)


def _following(instance: Instance, attempt: int) -> int:
    """The attempt after one; after none, the first of this instance: earlier numbers were of one that is forgotten."""
    if attempt:
        return attempt + 1
    return min((line.attempt for line in instance.story if line.attempt), default=instance.attempt)


def _node_of(instance: Instance, attempt: int) -> str:
    """Where an attempt ran; "": that is forgotten."""
    nodes = [line.node for line in instance.story if line.attempt == attempt and line.node]
    return nodes[-1] if nodes else ""


def streams_of(state: State, workload: Workload, index: int, attempt: int) -> tuple[LogStream, ...]:
    """The logs that an attempt has, by the version that it ran. If that is forgotten, it may have both."""
    instance = state.instances.get(f"{workload.key}.{index}")
    if not attempt:
        return ()
    if instance is None:
        return (LogStream.STDOUT,)
    placed = (line.version for line in instance.story if line.attempt == attempt and line.node)
    version = version_of(state, workload, next(placed, instance.version))
    return tuple(LogStream) if version is None or separates_stderr(version.document) else (LogStream.STDOUT,)


class LogStreamer:
    def __init__(self, call: Call, workload: Workload, index: int, attempt: int, offsets: dict[LogStream, int]) -> None:
        self._context = call.context
        self._redactor = call.redactor
        self._masker = masker_of(call, workload)
        self._workload = workload
        self._key = f"{workload.key}.{index}"
        self._index = index
        self._attempt = attempt
        self._offsets = offsets  # of the logs to follow

    async def events(self) -> AsyncGenerator[LogEvent, None]:
        """The position at once, then pieces and attempts, and the end. Raises NoService when the server stops."""
        yield self._event()
        while True:
            streams = self._streams()
            for stream in streams:
                await _fetch(self._context, self._log(stream), self._end(stream))
            async for event in self._pieces(streams):
                yield event
            for stream in streams:
                missing = self._missing(stream)
                if missing is not None:
                    yield self._event(missing=missing)
            event = await self._what_next()
            yield event
            if event.ending is not None:
                return

    async def _pieces(self, streams: Sequence[LogStream]) -> AsyncGenerator[LogEvent, None]:
        watch, logs = self._context.watch, self._context.logs
        sources = {
            stream: LogView(logs, self._log(stream), self._masker).follow(
                self._offsets[stream], partial(self._end, stream)
            )
            for stream in streams
        }
        pieces: dict[LogStream, asyncio.Task[Any]] = {
            stream: asyncio.ensure_future(anext(source, None)) for stream, source in sources.items()
        }
        change = watch.changed(self._key)
        try:
            while pieces and not watch.closed:
                await asyncio.wait({*pieces.values(), change}, return_when=asyncio.FIRST_COMPLETED)
                may_be_over = change.done()
                for stream in [stream for stream, piece in pieces.items() if piece.done()]:
                    found = pieces[stream].result()
                    if found is None:
                        del pieces[stream]
                        may_be_over = True
                        continue
                    self._offsets[stream], data = found
                    yield self._event(data=data, stream=stream)
                    pieces[stream] = asyncio.ensure_future(anext(sources[stream], None))
                if change.done():
                    change = watch.changed(self._key)
                # A log itself listings at the state only now and then; the end is sent at once.
                if may_be_over and all(self._is_complete(stream) for stream in pieces):
                    return
        finally:
            await cancel(change, *pieces.values())

    def _is_complete(self, stream: LogStream) -> bool:
        logs, log = self._context.logs, self._log(stream)
        return logs.finished(log, self._end(stream)) and (logs.size(log) or 0) <= self._offsets[stream]

    async def _what_next(self) -> LogEvent:
        watch = self._context.watch
        while not watch.closed:
            await self._context.engine.settled()  # an end that is not durable yet is not sent
            instance = self._instance()
            if instance is not None and instance.attempt > self._attempt:
                self._attempt = _following(instance, self._attempt)
                self._offsets = dict.fromkeys(self._offsets, 0)
                begun = AttemptView(self._attempt, instance.node, *self._why(instance.reason))
                return self._event(begun=begun)
            ending = self._ending(instance)
            if ending is not None:
                return self._event(ending=ending)
            changes = {watch.changed(key) for key in (self._key, self._workload.key)}
            try:
                await asyncio.wait(changes, return_when=asyncio.FIRST_COMPLETED)
            finally:
                cancel_futures(changes)
        raise NoService("the server is stopping")

    def _event(self, **more: Any) -> LogEvent:
        """With the position after it."""
        first, *second = self._offsets.values()
        return LogEvent(self._attempt, first, sum(second), **more)

    def _streams(self) -> list[LogStream]:
        """The logs of this attempt that are followed."""
        workload = self._known() or self._workload
        present = streams_of(self._context.engine.state, workload, self._index, self._attempt)
        return [stream for stream in self._offsets if stream in present]

    def _instance(self) -> Instance | None:
        return self._context.engine.state.instances.get(self._key) if self._known() is not None else None

    def _known(self) -> Workload | None:
        """The workload, unless its name has been given to another one since."""
        workload = self._context.engine.state.workloads.get(self._workload.key)
        return workload if workload is not None and workload.serial == self._workload.serial else None

    def _log(self, stream: LogStream) -> str:
        return log_name(self._workload.key, self._workload.serial, self._index, self._attempt, stream)

    def _end(self, stream: LogStream) -> LogEnd:
        instance = self._instance()
        return LogEnd(True) if instance is None else log_end(instance, self._attempt, stream)

    def _missing(self, stream: LogStream) -> MissingView | None:
        instance, count = self._instance(), self._context.logs.missing(self._log(stream), self._end(stream))
        if instance is None or not count:
            return None
        return MissingView(self._attempt, count, _node_of(instance, self._attempt), stream)

    def _ending(self, instance: Instance | None) -> EndingView | None:
        """How it ended; None while it may still go on."""
        workload = self._known()
        if workload is None:
            return EndingView("gone", self._attempt, "the workload was deleted")
        if instance is None:
            message, reason = self._why(workload.reason)
            state = workload.unstarted_end_state
            return EndingView(state, 0, message, reason=reason) if state else None
        if instance.state not in FINISHED:
            return None
        message, reason = self._why(instance.reason)
        ending = EndingView(instance.state, instance.attempt, message, instance.exit_code, instance.signal, reason)
        result = instance.result or Result()
        return msgspec.structs.replace(
            ending, data=result.data.decode(), problem=result.problem or "", outputs=outputs_summary(instance.outputs)
        )

    def _why(self, reason: Reason | None) -> tuple[str, ReasonView | None]:
        visible = self._redactor.visible
        return message_of(reason, visible), reason_view(reason, visible)
