"""A port of a run on this node's loopback: one connection through a tunnel."""

import asyncio
import os
import socket
from contextlib import suppress

from roost.agent.tunnels.descriptor import Descriptor
from roost.agent.tunnels.frames import Frames
from roost.model.tunnels import BadFrame, FrameKind, TunnelEnd, frame, kind_of

HOST = "127.0.0.1"
CONNECT_S_MAX = 5.0


async def forward(port: int, frames: Frames) -> TunnelEnd:
    """Until both sides have ended, or the client has left."""
    sock = socket.socket()
    sock.setblocking(False)
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            await asyncio.get_running_loop().sock_connect(sock, (HOST, port))
        if sock.getsockname() == sock.getpeername():  # no listener, and the kernel took this very port for us
            raise ConnectionRefusedError(111, "connection refused")
    except OSError as error:
        sock.close()
        why = error.strerror.lower() if error.strerror else "no answer"
        return TunnelEnd(error=f"port {port}: {why}", reason="failed")
    with sock:
        return await _pass(sock, frames)


async def _pass(sock: socket.socket, frames: Frames) -> TunnelEnd:
    end = Descriptor(os.dup(sock.fileno()))
    sent: asyncio.Queue[bytes | None] = asyncio.Queue()  # bounded by the window of the client

    async def hear() -> None:
        with suppress(BadFrame):
            while (data := await frames.read()) is not None:
                kind = kind_of(data)
                if kind not in (FrameKind.INPUT, FrameKind.INPUT_END):
                    return
                sent.put_nowait(data[1:] if kind is FrameKind.INPUT else None)

    async def put() -> None:
        while (data := await sent.get()) is not None:
            await end.write(data)
            await frames.write(frame(FrameKind.TAKEN))
        with suppress(OSError):
            sock.shutdown(socket.SHUT_WR)

    async def show() -> None:
        while data := await end.read():
            await frames.write(frame(FrameKind.OUTPUT, data))
        await frames.write(frame(FrameKind.OUTPUT_END))

    heard, putting, shown = map(asyncio.ensure_future, (hear(), put(), show()))
    both = asyncio.gather(putting, shown)
    try:
        await asyncio.wait((heard, both), return_when=asyncio.FIRST_COMPLETED)
        return TunnelEnd(code=0) if both.done() else TunnelEnd(error="its client left", reason="left")
    finally:
        heard.cancel()
        both.cancel()
        await asyncio.gather(heard, both, return_exceptions=True)
        end.close()
