"""The client's side of tunnels: a WebSocket, whose binary messages are frames. A standby passes them to the leader."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from roost.model.errors import NotFound, Refused, RoostError
from roost.model.tunnels import FRAME_BYTES_MAX, TunnelEnd, ended
from roost.server.auth.middleware import App, answer_websocket
from roost.server.auth.principal import PRINCIPAL, Principal
from roost.server.cluster.forwarding import Forwarder
from roost.server.engine.engine import Engine
from roost.server.http.connections import CONNECTION, Connection, Connections
from roost.server.tunnels.tunnels import LOST, TunnelBroker
from roost.server.waiting import cancel

PREFIX = "/v1/tunnels/"
MESSAGE_BYTES_MAX = FRAME_BYTES_MAX + 1
STILL_S = 1.0  # how often a tunnel checks that its principal would be admitted again
REVOKED = TunnelEnd(error="your token expired or your roles changed", reason="refused")

Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]


class WebSocketProtocol(WebSocketsSansIOProtocol):
    """A connection that was HTTP before, and counts as that one for as long as it lasts."""

    before: Connection
    others: Connections

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if hasattr(self, "scope"):
            self.scope[CONNECTION] = self.before  # type: ignore[literal-required]

    def connection_lost(self, exc: Exception | None) -> None:
        self.others.close(self.before)
        super().connection_lost(exc)


class TunnelApp:
    """WebSockets are tunnels; all else is for the API."""

    def __init__(self, api: App, tunnels: TunnelBroker, engine: Engine, forwarder: Forwarder | None) -> None:
        self._api = api
        self._tunnels = tunnels
        self._engine = engine
        self._forwarder = forwarder

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self._api(scope, receive, send)
            return
        path: str = scope["path"]
        try:
            if not path.startswith(PREFIX):
                raise NotFound("there is nothing at this path")
            await self._serve(path.removeprefix(PREFIX), scope[PRINCIPAL], receive, send)
        except RoostError as error:
            await answer_websocket(error, send)

    async def _serve(self, id: str, principal: Principal, receive: Receive, send: Send) -> None:
        """Accepted when the tunnel is found: until then a refusal is an answer of HTTP."""
        forwarder = self._forwarder
        is_here = self._tunnels.table.find(id) is not None
        leader = None if is_here or forwarder is None or self._engine.ready else await forwarder.leader()
        if leader is None and not is_here:
            raise NotFound("there is no such tunnel, or it is over", params={"tunnel": id[:100]})
        await receive()  # websocket.connect
        await send({"type": "websocket.accept"})

        async def read() -> bytes | None:
            message = await receive()
            return message.get("bytes") or b"" if message["type"] == "websocket.receive" else None

        async def write(data: bytes) -> None:
            await send({"type": "websocket.send", "bytes": data})

        if leader is None or forwarder is None:
            serving = asyncio.ensure_future(self._tunnels.serve_client(id, principal.name, read, write))
        else:
            serving = asyncio.ensure_future(forwarder.tunnel(leader, id, principal.name, read, write))
        try:
            while not serving.done() and principal.still():
                await asyncio.wait((serving,), timeout=STILL_S)
            if not serving.done():
                await cancel(serving)
                await write(ended(REVOKED))
            elif (error := serving.exception()) is not None:
                await write(ended(_end_of(error)))
        finally:
            await cancel(serving)
        await send({"type": "websocket.close", "code": 1000})


def _end_of(error: BaseException) -> TunnelEnd:
    if isinstance(error, RoostError):
        return TunnelEnd(error=error.message, reason="refused")
    if isinstance(error, grpc.aio.AioRpcError):
        return TunnelEnd(error=f"the leader went away: {error.details() or error.code().name}", reason="lost")
    if isinstance(error, Refused):
        return REVOKED
    return LOST
