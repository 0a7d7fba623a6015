"""The serial console of a virtual machine: one client at a time, through a tunnel. The log has its output as well."""

import asyncio
import os
import socket
from typing import NamedTuple

from roost.agent.tunnels.descriptor import Descriptor
from roost.agent.tunnels.frames import Frames
from roost.agent.tunnels.session import Output, TunnelSession, pieces
from roost.model.tunnels import FrameKind, TunnelEnd, TunnelOrder


class ConsolePlace(NamedTuple):
    directory: str  # of the run
    name: str  # of the socket in it


async def attach(order: TunnelOrder, place: ConsolePlace, frames: Frames) -> TunnelEnd:
    """Until the machine has ended, or the client has left."""
    try:
        sock = connect(place)
    except OSError as error:
        return TunnelEnd(error=f"the console: {error.strerror or error}", reason="failed")
    session = _Console(order, frames)
    end = Descriptor(sock.detach())
    try:
        return await session.run(end)
    finally:
        end.close()


def connect(place: ConsolePlace) -> socket.socket:
    """However long the path is: a socket's own limit is 108 bytes."""
    directory = os.open(place.directory, os.O_RDONLY | os.O_DIRECTORY)
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{place.name}")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock


class _Console(TunnelSession):
    async def run(self, end: Descriptor) -> TunnelEnd:
        self._ended = asyncio.Event()
        self._input = end
        self._outputs = [self._until_end(pieces(FrameKind.OUTPUT, end))]
        self._is_started.set()
        return await self.pass_until(self._reports())

    def end_input(self) -> None:
        """The machine has no end of input."""

    async def _until_end(self, output: Output) -> Output:
        async for piece in output:
            yield piece
        self._ended.set()

    async def _reports(self) -> TunnelEnd:
        await self._ended.wait()
        return TunnelEnd(code=0)
