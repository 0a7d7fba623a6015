"""A server with a port for controllers, and controllers that call it over real gRPC."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import grpc
from google.protobuf.message import Message

from roost.server.controller.service import SERVICE, Controllers
from roost.server.feed.change_log import Watch
from roost.wire import controller_pb2 as pb
from tests.server.inprocess_server import DEADLINE_S, TOKEN, InprocessServer, inprocess_server

REPLIES: dict[str, type[Message]] = {
    "Schedule": pb.ScheduleReply,
    "StartPipeline": pb.StartPipelineReply, "Update": pb.Workload, "Unschedule": pb.Workload, "Approve": pb.Workload,
    "Get": pb.GetReply, "List": pb.ListReply, "Run": pb.RunFrame, "Attach": pb.RunFrame, "Watch": pb.WatchFrame,
    "Why": pb.WhyReply, "Plan": pb.PlanReply, "ListNodes": pb.ListNodesReply, "GetNode": pb.GetNodeReply,
    "Drain": pb.Node, "PreviewDrain": pb.DrainPreview, "Cordon": pb.Node, "Uncordon": pb.Node,
    "CreateJoinToken": pb.CreateJoinTokenReply, "ListJoinTokens": pb.ListJoinTokensReply,
    "RevokeJoinToken": pb.RevokeJoinTokenReply, "History": pb.HistoryReply, "Events": pb.EventsReply,
}  # fmt: skip
OPTIONS = (("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0))


class No(Exception):
    """How a call was refused."""

    def __init__(self, error: grpc.aio.AioRpcError) -> None:
        super().__init__(f"{error.code().name}: {error.details()}")
        self.status = error.code()
        self.message = error.details() or ""
        trailing = {name: value for name, value in error.trailing_metadata() or ()}
        self.code, self.path, self.since = (trailing.get(f"roost-{item}", "") for item in ("code", "path", "since"))


class Stream:
    """Frames of one call, one after the other."""

    def __init__(self, call: Any, kind: type[Message]) -> None:
        self.call = call
        self._kind = kind

    async def next(self) -> Any:
        """The next frame; None: the call has ended well. Raises No."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                data = await self.call.read()
            except grpc.aio.AioRpcError as error:
                raise No(error) from None
        if data is grpc.aio.EOF:
            code = await self.call.code()
            if code is not grpc.StatusCode.OK:
                details, trailing = await self.call.details(), await self.call.trailing_metadata()
                raise No(grpc.aio.AioRpcError(code, grpc.aio.Metadata(), trailing, details))
            return None
        return self._kind.FromString(data)

    async def until(self, holds: Callable[[Any], Any]) -> list[Any]:
        """All frames up to the one of which this holds."""
        frames: list[Any] = []
        while not frames or not holds(frames[-1]):
            frame = await self.next()
            assert frame is not None, frames
            frames.append(frame)
        return frames

    async def rest(self) -> list[Any]:
        """All frames up to the end."""
        frames: list[Any] = []
        while (frame := await self.next()) is not None:
            frames.append(frame)
        return frames

    def cancel(self) -> None:
        self.call.cancel()


class Visitor:
    """A controller with a token."""

    def __init__(self, channel: grpc.aio.Channel, token: str | None) -> None:
        self.channel = channel
        self.metadata = (("authorization", f"Bearer {token}"),) if token is not None else ()

    async def call(self, method: str, request: Message | bytes) -> Any:
        """Ask once. Raises No."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        try:
            async with asyncio.timeout(DEADLINE_S):
                reply = await self.channel.unary_unary(f"/{SERVICE}/{method}")(data, metadata=self.metadata)
        except grpc.aio.AioRpcError as error:
            raise No(error) from None
        return REPLIES[method].FromString(reply)

    def stream(self, method: str, request: Message | bytes) -> Stream:
        data = request if isinstance(request, bytes) else request.SerializeToString()
        call: Any = self.channel.unary_stream(f"/{SERVICE}/{method}")(data, metadata=self.metadata)
        return Stream(call, REPLIES[method])

    async def refused(self, method: str, request: Message | bytes) -> No:
        """How it is refused."""
        try:
            if method in ("Run", "Attach", "Watch"):
                await self.stream(method, request).rest()
            else:
                await self.call(method, request)
        except No as no:
            return no
        raise AssertionError(f"{method} was not refused")

    async def schedule(self, *documents: Any, apply: bool = False) -> Any:
        texts = [document if isinstance(document, str) else json.dumps(document) for document in documents]
        return await self.call("Schedule", pb.ScheduleRequest(documents=texts, apply=apply))


class ControllerServer:
    """The port for controllers, and the server behind it."""

    def __init__(self, made: InprocessServer, controllers: Controllers, port: int) -> None:
        self.server = made
        self.controllers = controllers
        self.port = port
        self._channels: list[grpc.aio.Channel] = []

    def visitor(self, token: str | None = TOKEN, *options: tuple[str, int]) -> Visitor:
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{self.port}", options=(*OPTIONS, *options))
        self._channels.append(channel)
        return Visitor(channel, token)

    async def token(self, role: str, *projects: str) -> str:
        """A token with a role in projects."""
        name = "-".join((role, *projects)).replace("*", "all")
        answer = await self.server.post("/v1/tokens", {"name": name, "role": role, "projects": projects}, 201)
        return str(answer["token"])

    async def close(self) -> None:
        for channel in self._channels:
            with suppress(Exception):
                await channel.close()


@asynccontextmanager
async def controller_server(watch: Watch | None = None, **settings: Any) -> AsyncIterator[ControllerServer]:
    """A server that is open as long as the block."""
    async with inprocess_server(watch=watch, **settings) as made:
        controllers = Controllers(made.dispatcher)
        opened = ControllerServer(made, controllers, await controllers.start("127.0.0.1", 0, None))
        try:
            yield opened
        finally:
            made.watch.close()
            await opened.close()
            await controllers.stop(0.1)


def job(name: str = "job", **fields: Any) -> dict[str, Any]:
    return {"name": name, "command": "true", **fields}


def run_request(document: dict[str, Any], **fields: Any) -> pb.RunRequest:
    return pb.RunRequest(document=json.dumps(document), **fields)
