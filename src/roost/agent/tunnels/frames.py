"""The stream of one tunnel to the server: frames, one at a time in each direction."""

import asyncio

import grpc

from roost.wire import agent_pb2 as pb


class Frames:
    def __init__(self, call: "grpc.aio.StreamStreamCall[bytes, bytes]") -> None:
        self._call = call
        self._writing = asyncio.Lock()
        self._reading: asyncio.Future[object] | None = None  # to cancel it would end the stream

    async def open(self, id: str) -> None:
        await self._call.write(pb.TunnelFrame(id=id).SerializeToString())

    async def read(self) -> bytes | None:
        """The next frame; None: the client has left, or the server is gone."""
        self._reading = self._reading or asyncio.ensure_future(self._call.read())
        await asyncio.wait((self._reading,))
        reading, self._reading = self._reading, None
        if reading.cancelled() or reading.exception() is not None:
            return None
        data = reading.result()
        return pb.TunnelFrame.FromString(data).data if isinstance(data, bytes) else None

    async def write(self, data: bytes) -> None:
        """Waits while the client does not read. What is written after it has left is dropped."""
        async with self._writing:
            try:
                await self._call.write(pb.TunnelFrame(data=data).SerializeToString())
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                pass

    async def end(self, data: bytes) -> None:
        """The last frame; returns when the server has it."""
        await self.write(data)
        try:
            await self._call.done_writing()
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
            return
        while await self.read() is not None:
            pass
