"""Run, for controllers: one action followed to its end. Its stages as its story tells them, its log byte for byte.

Nothing is kept for whoever follows: the story is in the state, the log in its blob, and a position says how far both
are known. So a controller that was cut off, or killed, goes on where it was, on this server or another.
"""

import asyncio
import time
from base64 import b64decode
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any

import msgspec

from roost.core.state import State
from roost.model.errors import Conflict, Invalid, NoService, NotFound, Refused, RoostError
from roost.model.instance import Instance
from roost.model.limits import STORY_MAX
from roost.model.states import FINISHED
from roost.model.workload import Workload
from roost.server.auth_principal import Principal
from roost.server.auth_veil import Veil
from roost.server.controller_calls import Api, document_of, path_of, submit_one
from roost.server.controller_errors import Slow, Told, told_of
from roost.server.controller_views import stages_of
from roost.server.engine import Engine
from roost.server.views import instance_view, never_ran
from roost.server.watch import Watch
from roost.wire import controller_pb2 as pb

WRITE_S_MAX = 300.0  # a frame that is not taken for so long: nobody reads there. Less would cut off who looks away
MIRROR_S_MAX = 5.0  # until a server that stands by has heard what the leader says is so
PULSE_S = 10.0  # a word now and then, so that both sides notice that the other is gone
LOOK_S = 5.0  # how often the state is looked at although nothing was told: it may have been loaded anew
EVENT_BYTES_MAX = 1 << 20  # of one event of the log: 256 KiB in base64, and some

Event = dict[bytes, bytes]  # the fields of a server-sent event
Write = Callable[[bytes], Awaitable[None]]


async def run(
    api: Api, engine: Engine, watch: Watch, principal: Principal, request: pb.RunRequest, write: Write
) -> None:
    """Schedule an action, or find it, and follow it. Raises Told."""
    document = document_of(request.document, "document")
    project, name = _checked(msgspec.json.decode(document))
    is_there = request.attach and bool(name) and await _is_known(api, project, name)
    if not is_there:
        try:
            view = await submit_one(api, document)
            project, name = view.project, view.name
        except Told as told:
            if not (request.attach and told.error.code == "name_in_use"):
                raise
    asked = pb.AttachRequest(project=project, name=name, position=request.position)
    await attach(api, engine, watch, principal, asked, write)


async def attach(
    api: Api, engine: Engine, watch: Watch, principal: Principal, request: pb.AttachRequest, write: Write
) -> None:
    """Follow an action that is there. Raises Told."""
    path = f"{path_of(request.project, request.name)}/instances/{request.index}"
    await api.call("GET", f"{path}/log", limit="0")  # whether it is there, and may be seen: the leader knows
    action = Action(api, engine, watch, principal, request, write)
    try:
        await action.follow(f"{path}/log/follow")
    except ConnectionError as error:
        raise told_of(NoService(f"{error}: attach again, from your position")) from None
    except RoostError as error:
        raise told_of(error) from None


class Action:
    """One instance that somebody follows, and how far."""

    def __init__(
        self, api: Api, engine: Engine, watch: Watch, principal: Principal, request: pb.AttachRequest, write: Write
    ) -> None:
        self._api = api
        self._engine = engine
        self._watch = watch
        self._principal = principal
        self._write = write
        self._veil = Veil(principal.access)
        self._workload = f"{request.project}/{request.name}"
        self._index = request.index
        self._key = f"{self._workload}.{request.index}"
        self._position = pb.Position()
        self._position.CopyFrom(request.position)
        self._told_without_record = ""
        self._sent_at = time.monotonic()

    async def follow(self, path: str) -> None:
        """Tell stages and log as they come, and in the end the result."""
        await self._begin()
        source = self._log(path)
        piece: asyncio.Task[Event | None] = asyncio.ensure_future(anext(source, None))
        changed = self._changed()
        try:
            while True:
                waited: set[asyncio.Future[Any]] = {piece, *changed}
                await asyncio.wait(waited, timeout=LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                if time.monotonic() - self._sent_at >= PULSE_S:
                    await self._send(pb.RunFrame())
                if self._watch.closed:
                    raise NoService("the server is stopping")
                if not self._principal.still():
                    raise Refused("your token has ended, or your roles are others now")
                if not piece.done() or any(each.done() for each in changed):
                    _cancel(changed)
                    changed = self._changed()  # before the look: what comes meanwhile is not missed
                    await self._tell_stages()
                if piece.done():
                    if await self._tell_event(piece.result()):
                        return
                    piece = asyncio.ensure_future(anext(source, None))
        finally:
            _cancel(changed)
            piece.cancel()
            await asyncio.gather(piece, return_exceptions=True)
            await source.aclose()

    async def _begin(self) -> None:
        workload = await self._known()
        position = self._position
        if position.serial and position.serial != workload.serial:
            words = f"{self._workload} is another one than before: the one you have followed is not kept any more"
            raise Conflict(words, code="another_run", path="position.serial")
        position.serial = workload.serial
        project, _, name = self._workload.partition("/")
        await self._send(pb.RunFrame(project=project, name=name, index=self._index))
        await self._tell_stages()

    async def _known(self) -> Workload:
        """The leader knows it, so this server will soon."""
        found: list[Workload] = []

        def look(state: State) -> bool:
            workload = state.workloads.get(self._workload)
            if workload is not None:
                found.append(workload)
            return bool(found)

        if not await self._until(look):
            raise NotFound(f"there is no workload {self._workload}")
        return found[0]

    async def _until(self, holds: Callable[[State], bool]) -> bool:
        """Wait until this server's state says something; False: it does not in time."""
        try:
            async with asyncio.timeout(MIRROR_S_MAX):
                while True:
                    changed = self._changed()
                    try:
                        if holds(await self._engine.settled()):
                            return True
                        await asyncio.wait(changed, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        _cancel(changed)
                    if self._watch.closed:
                        raise NoService("the server is stopping")
        except TimeoutError:
            return False

    def _changed(self) -> "set[asyncio.Future[None]]":
        return {self._watch.changed(self._key), self._watch.changed(self._workload)}

    # stages

    async def _tell_stages(self) -> None:
        state = await self._engine.settled()
        workload = state.workloads.get(self._workload)
        if workload is None or workload.serial != self._position.serial:
            return  # gone: the log says so
        instance = state.instances.get(self._key)
        frame = self._of_waiting(workload) if instance is None else self._of_instance(state, instance)
        if frame is not None:
            for stage in frame.stages:
                stage.cause = self._veil.words(stage.cause)
            await self._send(frame)

    def _of_waiting(self, workload: Workload) -> pb.RunFrame | None:
        """It has no record yet: the workload stands for it."""
        view = never_ran(workload, self._index)
        if view.state == self._told_without_record:
            return None
        self._told_without_record = view.state
        return pb.RunFrame(stages=[pb.Stage(state=view.state, cause=view.cause, at_ms=view.since_ms or 0)])

    def _of_instance(self, state: State, instance: Instance) -> pb.RunFrame | None:
        position, view = self._position, instance_view(instance)
        lines = [line for line in instance.story if line.revision > position.revision]
        stages = stages_of(view, lines)
        gap = len(lines) == STORY_MAX and (position.revision > 0 or lines[0].cause != "submitted")
        if stages and not stages[0].attempt and stages[0].state == self._told_without_record:
            del stages[0]
        if instance.attempt != position.attempt:
            position.attempt, position.step = instance.attempt, 0
        begun = [
            pb.Stage(
                state="running", cause=f"step {step + 1}", at_ms=state.now_ms, revision=state.revision,
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

    async def _log(self, path: str) -> AsyncGenerator[Event, None]:
        """What the leader says of the log, wherever this runs."""
        position = self._position
        state = await self._engine.settled()
        known = state.instances.get(self._key)
        attempt = position.log_attempt or (1 if known is not None and known.attempt else 0)
        while True:
            stream = self._api.stream("GET", path, attempt=attempt, offset=position.log_offset)
            async with aclosing(stream), aclosing(_events(stream)) as events:
                async for event in events:
                    if not attempt and int(event.get(b"id", b"0").partition(b".")[0]) > 1:
                        break  # it has run more than once meanwhile: begin with the first
                    attempt = attempt or 1
                    yield event
                else:
                    return
            attempt = 1

    async def _tell_event(self, event: Event | None) -> bool:
        """True: it was the last one."""
        if event is None:
            raise NoService("the log has broken off: attach again, from your position")
        name, data = event.get(b"event"), event.get(b"data", b"")
        if name == b"stopping":
            raise NoService(msgspec.json.decode(data)["message"])
        if name == b"end":
            await self._end(msgspec.json.decode(data))
        elif name is None:
            await self._tell_piece(event.get(b"id", b""), b64decode(data))
        return name == b"end"

    async def _tell_piece(self, id: bytes, data: bytes) -> None:
        """The id of a piece is ATTEMPT.OFFSET of what comes next."""
        position = self._position
        attempt, _, offset = id.partition(b".")
        if not offset:
            return
        position.log_attempt, position.log_offset = int(attempt), int(offset)
        if data:
            piece = pb.LogPiece(attempt=int(attempt), offset=int(offset) - len(data), data=data)
            await self._send(pb.RunFrame(log=piece))

    async def _end(self, told: dict[str, Any]) -> None:
        await self._until(self._is_over)
        await self._tell_stages()
        result = pb.Result(
            state=told["state"], cause=told["cause"], exit_code=told.get("exit_code"), signal=told.get("signal"),
            attempt=told["attempt"],
        )  # fmt: skip
        await self._send(pb.RunFrame(result=result))

    def _is_over(self, state: State) -> bool:
        workload, instance = state.workloads.get(self._workload), state.instances.get(self._key)
        if workload is None or workload.serial != self._position.serial:
            return True
        return bool(workload.rest) if instance is None else instance.state in FINISHED

    async def _send(self, frame: pb.RunFrame) -> None:
        frame.position.CopyFrom(self._position)
        try:
            async with asyncio.timeout(WRITE_S_MAX):
                await self._write(frame.SerializeToString())
                self._sent_at = time.monotonic()
        except TimeoutError:
            raise Slow(f"you have read nothing for {WRITE_S_MAX:.0f} s: attach again, from your position") from None


def _checked(document: dict[str, Any]) -> tuple[str, str]:
    """Project and name of something that can be followed: one instance, now."""
    if document.get("count", 1) != 1 or "each" in document:
        field = "each" if "each" in document else "count"
        words = "an action is one instance; schedule an array, and attach to each of its instances"
        raise told_of(Invalid(f"document.{field}", words))
    if document.get("schedule") is not None:
        words = "what repeats has no end to wait for; schedule it, and watch what it starts"
        raise told_of(Invalid("document.schedule", words))
    project, name = document.get("project") or "default", document.get("name")
    return (project, name) if isinstance(project, str) and isinstance(name, str) else ("", "")


async def _is_known(api: Api, project: str, name: str) -> bool:
    try:
        await api.call("GET", f"{path_of(project, name, 'document.name')}/instances/0/log", limit="0")
    except Told as told:
        if told.error.code != "not_found":
            raise
        return False
    return True


async def _events(source: AsyncIterator[bytes]) -> AsyncGenerator[Event, None]:
    """Server-sent events as their fields; comments are left out."""
    rest = b""
    async for data in source:
        *blocks, rest = (rest + data).split(b"\n\n")
        assert len(rest) <= EVENT_BYTES_MAX, "an event without an end"
        for block in blocks:
            fields = [line.partition(b": ") for line in block.split(b"\n")]
            found = {name: value for name, _, value in fields if name}
            if found:
                yield found


def _cancel(futures: "set[asyncio.Future[None]]") -> None:
    for future in futures:
        future.cancel()
