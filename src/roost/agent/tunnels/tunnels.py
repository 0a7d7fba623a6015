"""Tunnels into runs: asks the server which it wants, and opens each on a connection of its own."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress

import grpc

from roost.agent.files.client import Call
from roost.agent.log import log
from roost.agent.tunnels.command import RunPlace, run_command
from roost.agent.tunnels.console import ConsolePlace, attach
from roost.agent.tunnels.container import ContainerPlace, run_in_container
from roost.agent.tunnels.frames import Frames
from roost.agent.tunnels.place import Place
from roost.agent.tunnels.port import forward
from roost.keeper import processes
from roost.model.errors import Conflict, RoostError
from roost.model.tunnels import TunnelEnd, TunnelOrder, ended
from roost.wire import agent_pb2 as pb
from roost.wire.codec import unpack_tunnel

METHOD = "/roost.agent.v1.Agents/Tunnel"
TUNNELS_MAX = 32  # at a time; more are refused
END_S_MAX = 10.0  # for the server to take the end of one
BROKEN = (grpc.aio.AioRpcError, grpc.aio.UsageError, asyncio.InvalidStateError, OSError)

ENDED = TunnelEnd(error="the run has ended", reason="ended")

OpenChannel = Callable[[], grpc.aio.Channel]
FindPlace = Callable[[int, int], Place]  # by token, and a process of the run; raises RoostError


class NodeTunnels:
    """The tunnels of one agent. `wake` is called when the server has some for it; `run` does the rest."""

    def __init__(
        self, call: Call, open_channel: OpenChannel, is_running: Callable[[int], bool], find: FindPlace
    ) -> None:
        self._call = call
        self._open_channel = open_channel
        self._is_running = is_running
        self._find = find
        self._wanted = asyncio.Event()
        self._processes: dict[int, tuple[int, str]] = {}  # of each run: one process, and when it began
        self._over: dict[str, tuple[int, asyncio.Event]] = {}  # of each open tunnel: its run, and whether that ended

    def wake(self) -> None:
        self._wanted.set()

    def entered(self, token: int, pid: int) -> None:
        """A run has this process: its own, or that of its slot."""
        self._processes[token] = (pid, began(pid))

    def left(self, token: int) -> None:
        """A run has ended, and its tunnels with it."""
        self._processes.pop(token, None)
        for run, over in self._over.values():
            if run == token:
                over.set()

    async def run(self) -> None:
        """Until cancelled. What an earlier run of this task left ends with it."""
        self._over = {}
        self._wanted.set()
        async with asyncio.TaskGroup() as group:
            while True:
                await self._wanted.wait()
                self._wanted.clear()
                for order in await self._ask():
                    group.create_task(self._serve(order))

    async def _ask(self) -> list[TunnelOrder]:
        try:
            data = await self._call("TakeTunnels", pb.TakeTunnelsRequest().SerializeToString())
        except BROKEN:
            return []
        return [unpack_tunnel(order) for order in pb.TakeTunnelsReply.FromString(data).tunnels]

    async def _serve(self, order: TunnelOrder) -> None:
        try:
            channel = self._open_channel()
        except (OSError, ValueError) as error:
            log(f"a tunnel was not opened: {error}")
            return
        over = asyncio.Event()
        self._over[order.id] = (order.token, over)
        try:
            frames = Frames(channel.stream_stream(METHOD)())
            await frames.open(order.id)
            end = await unless(over, self._pass(order, frames)) or ENDED
            with suppress(TimeoutError):
                async with asyncio.timeout(END_S_MAX):
                    await frames.end(ended(end))
        except BROKEN:
            pass  # the server is gone, and so is its client
        finally:
            del self._over[order.id]
            await channel.close()

    async def _pass(self, order: TunnelOrder, frames: Frames) -> TunnelEnd:
        if len(self._over) > TUNNELS_MAX:
            return TunnelEnd(error=f"this node has {TUNNELS_MAX} tunnels open", reason="refused")
        try:
            if order.port:
                return await forward(order.port, frames)
            end = await self._enter(order, frames)
        except RoostError as error:
            return TunnelEnd(error=error.message, reason="refused")
        except BROKEN as error:
            return TunnelEnd(error=str(error), reason="lost")
        except Exception as error:  # a defect: others go on, and the client gets the error
            log(f"a tunnel failed: {''.join(traceback.format_exception(error))}")
            return TunnelEnd(error=f"{type(error).__name__}: {error}", reason="lost")
        return end if end.code is not None or self._is_running(order.token) else ENDED

    async def _enter(self, order: TunnelOrder, frames: Frames) -> TunnelEnd:
        place = self._place(order.token)
        if isinstance(place, ConsolePlace) != order.console:
            raise Conflict("a virtual machine has a console, and no commands; all else has commands, and no console")
        match place:
            case ConsolePlace():
                return await attach(order, place, frames)
            case ContainerPlace():
                return await run_in_container(order, place, frames)
            case RunPlace():
                return await run_command(order, place, frames)

    def _place(self, token: int) -> Place:
        pid, start = self._processes.get(token, (0, ""))
        if not self._is_running(token) or not pid or not start or began(pid) != start:
            raise RoostError("no process of the run is there any longer", code="not_running")
        return self._find(token, pid)


async def unless(over: asyncio.Event, work: Awaitable[TunnelEnd]) -> TunnelEnd | None:
    """None: the event came first."""
    doing, waiting = asyncio.ensure_future(work), asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait((doing, waiting), return_when=asyncio.FIRST_COMPLETED)
        return doing.result() if doing.done() else None
    finally:
        doing.cancel()
        waiting.cancel()
        await asyncio.gather(doing, waiting, return_exceptions=True)


def began(pid: int) -> str:
    """When a process began: with its number it is that one and no other. Empty: it is gone."""
    _, _, rest = (processes.read(f"/proc/{pid}/stat") or b"").rpartition(b") ")
    fields = rest.split()
    return fields[19].decode() if len(fields) > 19 else ""
