"""A command in a container of this node: an `exec` of its engine, whose connection goes through a tunnel."""

import asyncio
import os
import socket
from contextlib import suppress
from typing import Any, NamedTuple

from roost.agent.tunnels.descriptor import Descriptor
from roost.agent.tunnels.frames import Frames
from roost.agent.tunnels.session import Output, TunnelSession, pieces
from roost.keeper.commands.supervisor import end_marked
from roost.keeper.containers.engine import EngineAnswer, EngineAway, EngineClient, EngineRefused
from roost.keeper.processes import COMMAND_MARK
from roost.model.tunnels import FrameKind, TunnelEnd, TunnelOrder

CALL_S_MAX = 30.0
NOT_YET = (404, 409)  # no such container, or it is not running
STARTS_MAX, START_PAUSE_S = 40, 0.25
SIGNALLED = 128  # and the number of the signal, as an exit code of an engine
HEAD = 8  # bytes before a piece of output: its stream, three zeros, its length
STDERR = 2


class ContainerPlace(NamedTuple):
    socket: str  # of its engine
    name: str


async def run_in_container(order: TunnelOrder, place: ContainerPlace, frames: Frames) -> TunnelEnd:
    """Until it has ended, or the client has left."""
    session = _Exec(order, place, frames)
    try:
        return await session.run()
    except (EngineAway, EngineRefused) as error:
        return TunnelEnd(error=f"the container engine: {error}", reason="failed")
    finally:
        session.close()
        await asyncio.to_thread(end_marked, order.id)  # an engine leaves it when its client goes


class _Exec(TunnelSession):
    def __init__(self, order: TunnelOrder, place: ContainerPlace, frames: Frames) -> None:
        super().__init__(order, frames)
        self._name = place.name
        self._engine = EngineClient(place.socket, CALL_S_MAX)
        self._answer: EngineAnswer | None = None
        self._ended = asyncio.Event()
        self._id = ""

    async def run(self) -> TunnelEnd:
        await self._begin()
        assert self._answer is not None
        sock = self._answer.sock
        self._input = Descriptor(os.dup(sock.fileno()))
        first = self._answer.rest()
        source = pieces(FrameKind.OUTPUT, self._input)
        self._outputs = [self._until_end(after(first, source) if self._order.terminal else split(first, source))]
        self._is_started.set()
        return await self.pass_until(self._reports())

    def close(self) -> None:
        if self._input is not None:
            self._input.close()
        if self._answer is not None:
            self._answer.close()

    async def resize(self, rows: int, columns: int) -> None:
        path = f"/exec/{self._id}/resize?h={rows}&w={columns}"
        with suppress(EngineAway, EngineRefused):  # it has ended, or has not begun
            await asyncio.to_thread(self._engine.call, "POST", path)

    def end_input(self) -> None:
        assert self._answer is not None
        with suppress(OSError):
            self._answer.sock.shutdown(socket.SHUT_WR)

    async def _begin(self) -> None:
        """A run counts as started when its shim is, a moment before its container."""
        for left in reversed(range(STARTS_MAX)):
            try:
                return await asyncio.to_thread(self._start)
            except EngineRefused as error:
                if error.status not in NOT_YET or not left:
                    raise
            await asyncio.sleep(START_PAUSE_S)

    def _start(self) -> None:
        order = self._order
        env = [f"{COMMAND_MARK}={order.id}", *([f"TERM={order.term or 'dumb'}"] if order.terminal else [])]
        asked = {
            "Cmd": list(order.argv), "Env": env, "Tty": order.terminal, "AttachStdin": True, "AttachStdout": True,
            "AttachStderr": True,
        }  # fmt: skip
        self._id = str(self._call("POST", f"/containers/{self._name}/exec", asked)["Id"])
        self._answer = self._engine.stream(f"/exec/{self._id}/start", {"Detach": False, "Tty": order.terminal})

    async def _until_end(self, output: Output) -> Output:
        try:
            async for piece in output:
                yield piece
        finally:
            self._ended.set()

    async def _reports(self) -> TunnelEnd:
        """Its output ends with it."""
        await self._ended.wait()
        found = await asyncio.to_thread(self._call, "GET", f"/exec/{self._id}/json")
        code = int(found.get("ExitCode") or 0)
        return TunnelEnd(signal=code - SIGNALLED) if SIGNALLED < code < SIGNALLED + 65 else TunnelEnd(code=code)

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        found = self._engine.call(method, path, body)
        return found if isinstance(found, dict) else {}


async def after(first: bytes, source: Output) -> Output:
    """A terminal: bytes as they are."""
    if first:
        yield FrameKind.OUTPUT, first
    async for piece in source:
        yield piece


async def split(first: bytes, source: Output) -> Output:
    """Streams apart: pieces with a head each."""
    buffer, kind, left = first, FrameKind.OUTPUT, 0
    while True:
        while buffer:
            if left:
                piece, buffer = buffer[:left], buffer[left:]
                left -= len(piece)
                yield kind, piece
            elif len(buffer) >= HEAD:
                kind = FrameKind.ERRORS if buffer[0] == STDERR else FrameKind.OUTPUT
                left, buffer = int.from_bytes(buffer[4:HEAD], "big"), buffer[HEAD:]
            else:
                break
        async for _, data in source:
            buffer += data
            break
        else:
            return
