"""One tunnel that a person may sit at: input with a window, output, a terminal that changes its size, and an end."""

import asyncio
import struct
from collections.abc import AsyncIterator, Coroutine
from contextlib import suppress
from typing import Any

from roost.agent.tunnels.descriptor import Descriptor
from roost.agent.tunnels.frames import Frames
from roost.model.tunnels import BadFrame, FrameKind, TunnelEnd, TunnelOrder, frame, kind_of, size_in

END_OF_INPUT = b"\x04"  # for a terminal
LEFT = TunnelEnd(error="its client left", reason="left")

Output = AsyncIterator[tuple[FrameKind, bytes]]


class TunnelSession:
    """What its kinds have in common. They set `_input` and `_outputs`, and then `_is_started`."""

    def __init__(self, order: TunnelOrder, frames: Frames) -> None:
        self._order = order
        self._frames = frames
        self._input: Descriptor | None = None
        self._outputs: list[Output] = []
        self._typed: asyncio.Queue[bytes] = asyncio.Queue()  # bounded by the window of the client
        self._is_started = asyncio.Event()
        self._size = (order.rows, order.columns)

    async def pass_until(self, ending: Coroutine[Any, Any, TunnelEnd]) -> TunnelEnd:
        """Move bytes until it ends and all its output is sent, or the client has left."""
        reported = asyncio.ensure_future(ending)
        heard = asyncio.ensure_future(self._hear())
        typing = asyncio.ensure_future(self._type())
        started = asyncio.ensure_future(self._is_started.wait())
        tasks: list[asyncio.Future[Any]] = [reported, heard, typing, started]
        try:
            await asyncio.wait((reported, heard, started), return_when=asyncio.FIRST_COMPLETED)
            shown = [asyncio.ensure_future(self._show(output)) for output in self._outputs]
            tasks += shown
            await asyncio.wait((reported, heard), return_when=asyncio.FIRST_COMPLETED)
            if not reported.done():
                return LEFT
            if shown and not reported.result().error:
                await asyncio.wait((asyncio.gather(*shown), heard), return_when=asyncio.FIRST_COMPLETED)
            return reported.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def resize(self, rows: int, columns: int) -> None:
        pass

    async def signal(self, number: int) -> None:
        pass

    def end_input(self) -> None:
        assert self._input is not None
        self._input.close()

    async def _hear(self) -> None:
        """Frames of the client, until it leaves."""
        with suppress(BadFrame):
            while (data := await self._frames.read()) is not None:
                match kind_of(data):
                    case FrameKind.INPUT | FrameKind.INPUT_END:
                        self._typed.put_nowait(data)
                    case FrameKind.RESIZE:
                        self._size = size_in(data)
                        if self._is_started.is_set() and all(self._size):
                            await self.resize(*self._size)
                    case FrameKind.SIGNAL if len(data) == 2:
                        await self.signal(data[1])
                    case _:
                        return

    async def _type(self) -> None:
        """Input of the client, one frame after the other; each is acknowledged when it was taken."""
        await self._is_started.wait()
        assert self._input is not None
        if self._order.terminal and all(self._size):
            await self.resize(*self._size)
        while True:
            data = await self._typed.get()
            if data[0] == FrameKind.INPUT:
                await self._input.write(data[1:])
                await self._frames.write(frame(FrameKind.TAKEN))
            elif self._order.terminal:
                await self._input.write(END_OF_INPUT)
            else:
                self.end_input()

    async def _show(self, output: Output) -> None:
        async for kind, data in output:
            await self._frames.write(frame(kind, data))


async def pieces(kind: FrameKind, source: Descriptor) -> Output:
    while data := await source.read():
        yield kind, data


def window(rows: int, columns: int) -> bytes:
    """For TIOCSWINSZ."""
    return struct.pack("HHHH", rows, columns, 0, 0)
