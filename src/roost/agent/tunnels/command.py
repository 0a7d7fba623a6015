"""A command inside a run: its input, output and terminal go through a tunnel. It ends with the tunnel.

A small process of its own starts it and ends it (keeper/commands); what is here only moves bytes.
"""

import asyncio
import fcntl
import os
import signal
import socket
import subprocess
import sys
import termios
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from roost.agent.tunnels.descriptor import Descriptor
from roost.agent.tunnels.frames import Frames
from roost.agent.tunnels.session import TunnelSession, pieces, window
from roost.keeper import commands
from roost.keeper.commands.entry import CommandOrder
from roost.keeper.processes import COMMAND_MARK
from roost.keeper.slots import messages
from roost.keeper.slots.messages import Broken
from roost.model.tunnels import FrameKind, TunnelEnd, TunnelOrder

PROGRAM = str(Path(commands.__file__).with_name("__main__.py"))
SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGKILL}
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


class _Command(TunnelSession):
    def __init__(self, order: TunnelOrder, link: socket.socket, frames: Frames) -> None:
        super().__init__(order, frames)
        self._link = link
        self._loop = asyncio.get_running_loop()
        self._sources: list[Descriptor] = []

    async def run(self, place: RunPlace) -> TunnelEnd:
        self._start(place)
        return await self.pass_until(self._reports())

    def close(self) -> None:
        for source in self._sources:
            source.close()

    async def resize(self, rows: int, columns: int) -> None:
        if self._order.terminal and self._input is not None and self._input.fd >= 0:
            with suppress(OSError):
                fcntl.ioctl(self._input.fd, termios.TIOCSWINSZ, window(rows, columns))

    async def signal(self, number: int) -> None:
        with suppress(Broken):
            if number in SIGNALS:
                messages.send(self._link, ("signal", number))

    def _start(self, place: RunPlace) -> None:
        order = self._order
        env = place.env | {COMMAND_MARK: order.id}
        theirs: list[int] = []
        if order.terminal:
            env["TERM"] = order.term or "dumb"
        else:
            (stdin, writes), (reads, stdout), (errors, stderr) = os.pipe(), os.pipe(), os.pipe()
            theirs = [stdin, stdout, stderr]
            self._input, out, err = self._sources = [Descriptor(writes), Descriptor(reads), Descriptor(errors)]
            self._outputs = [pieces(FrameKind.OUTPUT, out), pieces(FrameKind.ERRORS, err)]
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
                    self._input = Descriptor(files[0])
                    self._sources.append(self._input)
                    self._outputs = [pieces(FrameKind.OUTPUT, self._input)]
                    self._is_started.set()
                case ("started", int()):
                    if not self._order.terminal:
                        self._is_started.set()
                case ("failed", str(text)):
                    return TunnelEnd(error=text, reason="failed")
                case ("ended", int(code)):
                    return TunnelEnd(code=code) if code >= 0 else TunnelEnd(signal=-code)

    async def _readable(self) -> None:
        ready: asyncio.Future[None] = self._loop.create_future()
        self._loop.add_reader(self._link, lambda: None if ready.done() else ready.set_result(None))
        try:
            await ready
        finally:
            self._loop.remove_reader(self._link)
