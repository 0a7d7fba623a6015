"""A command inside a run: its input, output and terminal go through a tunnel. It ends with the tunnel.

A small process of its own starts it and ends it (keeper/commands); what is here only moves bytes.
"""

import asyncio
import fcntl
import os
import signal
import socket
import struct
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from roost.agent.tunnels.descriptor import Descriptor
from roost.agent.tunnels.frames import Frames
from roost.keeper import commands
from roost.keeper.commands.entry import CommandOrder
from roost.keeper.processes import COMMAND_MARK
from roost.keeper.slots import messages
from roost.keeper.slots.messages import Broken
from roost.model.tunnels import BadFrame, FrameKind, TunnelEnd, TunnelOrder, frame, kind_of, size_in

PROGRAM = str(Path(commands.__file__).with_name("__main__.py"))
SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGKILL}
END_OF_INPUT = b"\x04"  # for a terminal
LINGER_S_MAX = 3.0  # for its parent to end all that it has started


class RunPlace(NamedTuple):
    """Where a command goes: the processes of its run, and what they were given."""

    env: dict[str, str]
    directory: str
    mark: str  # of the keeper, for what outlives the agent
    pid: int
    slot: int = 0
    user: int = 0
    group: int = 0
    is_isolated: bool = False


async def run_command(order: TunnelOrder, place: RunPlace, frames: Frames) -> TunnelEnd:
    """Until it has ended, or the client has left."""
    own, other = messages.pair()
    own.setblocking(False)
    command = _Command(order, own, frames)
    try:
        with other:
            process = subprocess.Popen(
                [sys.executable, "-X", "utf8", "-I", "-S", PROGRAM, str(other.fileno())], pass_fds=(other.fileno(),),
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
                env={"ROOST_KEEPER": place.mark, "PATH": os.defpath},
            )  # fmt: skip
        return await command.run(place)
    finally:
        own.close()
        command.close()
        await _ended(process)


async def _ended(process: "subprocess.Popen[bytes]") -> None:
    """Its link is closed, so it ends by itself; one that is stuck goes with the agent."""
    with suppress(TimeoutError):
        async with asyncio.timeout(LINGER_S_MAX):
            while process.poll() is None:
                await asyncio.sleep(0.005)
            return
    process.kill()
    process.poll()


class _Command:
    def __init__(self, order: TunnelOrder, link: socket.socket, frames: Frames) -> None:
        self._order = order
        self._link = link
        self._frames = frames
        self._loop = asyncio.get_running_loop()
        self._input: Descriptor | None = None
        self._outputs: list[tuple[FrameKind, Descriptor]] = []
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()  # bounded by the window of the client
        self._is_started = asyncio.Event()
        self._size = (order.rows, order.columns)

    async def run(self, place: RunPlace) -> TunnelEnd:
        self._start(place)
        reported = asyncio.ensure_future(self._reports())
        heard = asyncio.ensure_future(self._hear())
        typing = asyncio.ensure_future(self._type())
        tasks: list[asyncio.Future[Any]] = [reported, heard, typing]
        try:
            started = asyncio.ensure_future(self._is_started.wait())
            tasks.append(started)
            await asyncio.wait((reported, heard, started), return_when=asyncio.FIRST_COMPLETED)
            shown = [asyncio.ensure_future(self._show(kind, source)) for kind, source in self._outputs]
            tasks += shown
            await asyncio.wait((reported, heard), return_when=asyncio.FIRST_COMPLETED)
            if not reported.done():
                return TunnelEnd(error="its client left", reason="left")
            if shown and not reported.result().error:
                await asyncio.wait((asyncio.gather(*shown), heard), return_when=asyncio.FIRST_COMPLETED)
            return reported.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        for _, source in self._outputs:
            source.close()
        if self._input is not None:
            self._input.close()

    def _start(self, place: RunPlace) -> None:
        order = self._order
        env = place.env | {COMMAND_MARK: order.id}
        theirs: list[int] = []
        if order.terminal:
            env["TERM"] = order.term or "dumb"
        else:
            (stdin, writes), (reads, stdout), (errors, stderr) = os.pipe(), os.pipe(), os.pipe()
            theirs = [stdin, stdout, stderr]
            self._input = Descriptor(writes)
            self._outputs = [(FrameKind.OUTPUT, Descriptor(reads)), (FrameKind.ERRORS, Descriptor(errors))]
        wanted = CommandOrder(
            order.id, list(order.argv), env, place.directory, place.pid, place.slot, place.user, place.group,
            place.is_isolated, self._size if order.terminal else None,
        )  # fmt: skip
        try:
            messages.send(self._link, ("start", wanted.packed()), tuple(theirs))
        finally:
            for fd in theirs:
                os.close(fd)

    async def _reports(self) -> TunnelEnd:
        """What its parent says, until it has ended."""
        while True:
            try:
                message, files = messages.receive(self._link)
            except BlockingIOError:
                await self._readable()
                continue
            except Broken:
                return TunnelEnd(error="the command was lost", reason="lost")
            match message:
                case ("terminal",):
                    self._terminal(files[0])
                case ("started", int()):
                    if not self._order.terminal:
                        self._is_started.set()
                case ("failed", str(text)):
                    return TunnelEnd(error=text, reason="failed")
                case ("ended", int(code)):
                    return TunnelEnd(code=code) if code >= 0 else TunnelEnd(signal=-code)

    def _terminal(self, fd: int) -> None:
        both = self._input = Descriptor(fd)
        self._outputs = [(FrameKind.OUTPUT, both)]
        self._resize(self._size)
        self._is_started.set()

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._link, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(self._link)

    async def _hear(self) -> None:
        """Frames of the client, until it leaves."""
        with suppress(BadFrame):
            while (data := await self._frames.read()) is not None:
                match kind_of(data):
                    case FrameKind.INPUT | FrameKind.INPUT_END:
                        self._typed.put_nowait(data)
                    case FrameKind.RESIZE:
                        self._resize(size_in(data))
                    case FrameKind.SIGNAL if len(data) == 2 and data[1] in SIGNALS:
                        with suppress(Broken):
                            messages.send(self._link, ("signal", data[1]))
                    case _:
                        return

    def _resize(self, size: tuple[int, int]) -> None:
        self._size = size
        if self._order.terminal and self._input is not None and self._input.fd >= 0 and all(size):
            with suppress(OSError):
                fcntl.ioctl(self._input.fd, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))

    async def _type(self) -> None:
        """Input of the client, one frame after the other; each is acknowledged when it was taken."""
        await self._is_started.wait()
        while True:
            data = await self._typed.get()
            assert self._input is not None
            if data[0] == FrameKind.INPUT:
                await self._input.write(data[1:])
                await self._frames.write(frame(FrameKind.TAKEN))
            elif self._order.terminal:
                await self._input.write(END_OF_INPUT)
            else:
                self._input.close()

    async def _show(self, kind: FrameKind, source: Descriptor) -> None:
        while data := await source.read():
            await self._frames.write(frame(kind, data))
