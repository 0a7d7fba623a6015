"""Run, for controllers: one action followed to its end. Its stages as in its story, its log byte for byte.

Nothing is kept for a reader: the story is in the state, the log in its blob, and a position says how far both
are known. So a controller that was cut off, or killed, goes on where it was, on this server or another.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from roost.core.state.state import State
from roost.model.errors import Conflict, Invalid, NoService, NotFound, Refused, Unreadable
from roost.model.limits import STORY_MAX
from roost.model.records.instance import Instance
from roost.model.records.workload import Workload
from roost.model.states import FINISHED, LogStream
from roost.server.auth.principal import Redactor
from roost.server.controller.calls import Caller, check_names, submit_one
from roost.server.controller.encode import message_of, stages_of
from roost.server.controller.errors import Slow
from roost.server.operations.work import logs
from roost.server.operations.work.logs import LogEvent
from roost.server.views.work import never_ran
from roost.server.waiting import cancel, cancel_futures
from roost.wire import controller_pb2 as pb

WRITE_S_MAX = 300.0  # a frame that is not read for so long: the reader is gone. Less would cut off slow ones
MIRROR_S_MAX = 5.0  # until a server that stands by has heard what the leader says is so
PULSE_S = 10.0  # a word now and then, so that both sides notice that the other is gone
LOOK_S = 5.0  # how often the state is read without a change: it may have been loaded again

Write = Callable[[bytes], Awaitable[None]]


async def run(caller: Caller, request: pb.RunRequest, write: Write) -> None:
    """Submit an action, or find it, and follow it. Raises RoostError."""
    project, name = _checked(request.document)
    is_there = request.attach and bool(name) and await _is_known(caller, project, name)
    if not is_there and request.position.serial:
        message = f"{project}/{name}, which you followed, was deleted or is not known here; a position never submits"
        raise NotFound(message, params={"workload": f"{project}/{name}"})
    if not is_there:
        try:
            view = await submit_one(caller, request.document, "document", single=True)
            project, name = view.project, view.name
        except Conflict as error:
            if not (request.attach and error.code == "name_in_use"):
                raise
    await attach(caller, pb.AttachRequest(project=project, name=name, position=request.position), write)


async def attach(caller: Caller, request: pb.AttachRequest, write: Write) -> None:
    """Follow a known action. Raises RoostError."""
    check_names(request.project, request.name)
    # Whether it is there, and may be seen: the leader knows.
    await caller.perform(logs.read_log, request.project, request.name, request.index, limit=0)
    await FollowedRun(caller, request, write).follow()


class FollowedRun:
    def __init__(self, caller: Caller, request: pb.AttachRequest, write: Write) -> None:
        context = caller.dispatcher.context
        self._caller = caller
        self._engine = context.engine
        self._watch = context.watch
        self._write = write
        self._redactor = Redactor(caller.principal.access)
        self._project, self._name = request.project, request.name
        self._workload = f"{request.project}/{request.name}"
        self._index = request.index
        self._key = f"{self._workload}.{request.index}"
        self._position = pb.Position()
        self._position.CopyFrom(request.position)
        self._told_without_record = ""
        self._sent_at = time.monotonic()

    async def follow(self) -> None:
        await self._begin()
        source = self._log()
        piece: asyncio.Task[LogEvent | None] = asyncio.ensure_future(anext(source, None))
        changed = self._changed()
        try:
            while True:
                waited: set[asyncio.Future[Any]] = {piece, *changed}
                await asyncio.wait(waited, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if time.monotonic() - self._sent_at >= PULSE_S:
                    await self._send(pb.RunFrame())
                if self._watch.closed:
                    raise NoService("the server is stopping")
                if not self._caller.principal.still():
                    raise Refused("your token expired or your roles changed; reconnect")
                if not piece.done() or any(item.done() for item in changed):
                    cancel_futures(changed)
                    changed = self._changed()  # before the look: what comes meanwhile is not missed
                    await self._tell_stages()
                if piece.done():
                    if await self._tell_event(piece.result()):
                        return
                    piece = asyncio.ensure_future(anext(source, None))
        finally:
            cancel_futures(changed)
            await cancel(piece)
            await source.aclose()

    async def _begin(self) -> None:
        if not await self._until(lambda state: self._workload in state.workloads):
            raise NotFound(f"there is no workload {self._workload}", params={"workload": self._workload})
        workload, position = self._engine.state.workloads[self._workload], self._position
        if position.serial and position.serial != workload.serial:
            message = f"{self._workload} is another one than before: the one that you followed was deleted"
            raise Conflict(message, code="another_run", path="position.serial")
        position.serial = workload.serial
        incarnation = self._engine.state.meta.first_serial
        lost = position.revision > 0 and position.incarnation != incarnation
        position.incarnation = incarnation
        if lost:
            position.revision = 0
        await self._send(pb.RunFrame(project=self._project, name=self._name, index=self._index, state_lost=lost))
        await self._tell_stages()

    async def _until(self, holds: Callable[[State], bool]) -> bool:
        """Wait until this server's state meets a condition; False: it does not in time."""
        try:
            async with asyncio.timeout(MIRROR_S_MAX):
                while True:
                    changed = self._changed()
                    try:
                        if holds(await self._engine.settled()):
                            return True
                        await asyncio.wait(changed, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        cancel_futures(changed)
                    if self._watch.closed:
                        raise NoService("the server is stopping")
        except TimeoutError:
            return False

    def _changed(self) -> "set[asyncio.Future[int]]":
        keys = (self._key, self._workload, *self._caller.principal.records)
        return {self._watch.changed(key) for key in keys}

    # stages

    async def _tell_stages(self) -> None:
        state = await self._engine.settled()
        workload = state.workloads.get(self._workload)
        if workload is None or workload.serial != self._position.serial:
            return  # gone: the log says so
        instance = state.instances.get(self._key)
        frame = self._of_waiting(workload) if instance is None else self._of_instance(state, instance)
        if frame is not None:
            await self._send(frame)

    def _of_waiting(self, workload: Workload) -> pb.RunFrame | None:
        """It has no record yet: the workload stands for it."""
        view = never_ran(workload, self._index, self._redactor.visible)
        if view.state == self._told_without_record:
            return None
        self._told_without_record = view.state
        code = view.reason.code if view.reason else ""
        stage = pb.Stage(state=view.state, message=view.message, reason=code, at_ms=view.since_ms or 0)
        return pb.RunFrame(stages=[stage])

    def _of_instance(self, state: State, instance: Instance) -> pb.RunFrame | None:
        position = self._position
        lines = [line for line in instance.story if line.revision > position.revision]
        stages = stages_of(lines, self._redactor.visible)
        gap = len(lines) == STORY_MAX and (position.revision > 0 or bool(lines[0].before))
        if stages and not stages[0].attempt and stages[0].state == self._told_without_record:
            del stages[0]
        if instance.attempt != position.attempt:
            position.attempt, position.step = instance.attempt, 0
        begun = [
            pb.Stage(
                state="running", message=f"step {step + 1}", at_ms=state.now_ms, revision=state.revision,
                attempt=instance.attempt, node=instance.node, step=step,
            )
            for step in range(position.step + 1, instance.step + 1)
        ]  # fmt: skip
        if begun:  # steps come after the start and before the end
            at = max((number + 1 for number, stage in enumerate(stages) if stage.state == "running"), default=0)
            stages[at:at] = begun
            position.step = instance.step
        position.revision = max(position.revision, lines[-1].revision if lines else 0)
        return pb.RunFrame(stages=stages, gap=gap) if stages else None

    # the log

    async def _log(self) -> AsyncGenerator[LogEvent, None]:
        """The leader's view of the log, on any server."""
        position = self._position
        known = (await self._engine.settled()).instances.get(self._key)
        attempt = position.log_attempt or (1 if known is not None and known.attempt else 0)
        while True:
            stream = await self._caller.perform(
                logs.follow_log, self._project, self._name, self._index, attempt, position.log_offset, "all",
                position.stderr_offset,
            )  # fmt: skip
            async with aclosing(stream):
                async for event in stream:
                    if not attempt and event.attempt > 1:
                        break  # it has run more than once meanwhile: begin with the first
                    attempt = attempt or 1
                    yield event
                else:
                    return
            attempt = 1

    async def _tell_event(self, event: LogEvent | None) -> bool:
        """Returns True after the last event."""
        if event is None:
            raise NoService("the log has broken off: attach again, from your position")
        if event.ending is not None:
            await self._until(self._is_over)
            await self._tell_stages()
            await self._send(pb.RunFrame(result=message_of(event.ending, pb.Result)))
            return True
        if event.attempt:
            self._position.log_attempt, self._position.log_offset = event.attempt, event.offset
            self._position.stderr_offset = event.stderr_offset
        if event.missing is not None:
            count, is_stderr = event.missing.bytes, event.missing.stream == LogStream.STDERR
            await self._send(pb.RunFrame(stderr_missing=count) if is_stderr else pb.RunFrame(log_missing=count))
        if event.data:
            await self._send(pb.RunFrame(log=_piece(event)))
        return False

    def _is_over(self, state: State) -> bool:
        workload, instance = state.workloads.get(self._workload), state.instances.get(self._key)
        if workload is None or workload.serial != self._position.serial:
            return True
        return bool(workload.unstarted_end_state) if instance is None else instance.state in FINISHED

    async def _send(self, frame: pb.RunFrame) -> None:
        frame.position.CopyFrom(self._position)
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await self._write(frame.SerializeToString())
                self._sent_at = time.monotonic()
        except TimeoutError:
            raise Slow(f"you have read nothing for {WRITE_S_MAX:.0f} s: attach again, from your position") from None


def _piece(event: LogEvent) -> pb.LogPiece:
    is_stderr = event.stream is LogStream.STDERR
    return pb.LogPiece(
        attempt=event.attempt, data=event.data,
        offset=(event.stderr_offset if is_stderr else event.offset) - len(event.data),
        stream=pb.LOG_STREAM_STDERR if is_stderr else pb.LOG_STREAM_STDOUT,
    )  # fmt: skip


class _Peeked(msgspec.Struct):
    """The fields of a document that are looked at before it is submitted: decoding nothing else is quick."""

    project: Any = "default"
    name: Any = None
    count: Any = 1
    each: msgspec.Raw | msgspec.UnsetType = msgspec.UNSET
    schedule: msgspec.Raw = msgspec.Raw(b"null")


def _checked(text: str) -> tuple[str, str]:
    """Project and name of a document that can be followed: one instance, now."""
    try:
        document = msgspec.json.decode(text, type=_Peeked)
    except msgspec.ValidationError:
        raise Invalid("document", "a workload is an object") from None
    except msgspec.DecodeError as error:
        raise Unreadable(f"this is not JSON: {error}", path="document") from None
    if document.count != 1 or document.each is not msgspec.UNSET:
        field = "each" if document.each is not msgspec.UNSET else "count"
        message = "an action is one instance; schedule an array, and attach to each of its instances"
        raise Invalid(f"document.{field}", message)
    if bytes(document.schedule) != b"null":
        message = "what repeats has no end to wait for; schedule it, and watch what it starts"
        raise Invalid("document.schedule", message)
    project, name = document.project or "default", document.name
    return (project, name) if isinstance(project, str) and isinstance(name, str) else ("", "")


async def _is_known(caller: Caller, project: str, name: str) -> bool:
    check_names(project, name, "document.name")
    try:
        await caller.perform(logs.read_log, project, name, 0, limit=0)
    except NotFound as error:
        if error.code != "not_found":
            raise
        return False
    return True
