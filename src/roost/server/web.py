"""Web: the HTTP server itself. uvicorn, with bounds it lacks: how large and how slow a request's head may be."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from roost.server.auth import App

HEAD_BYTES_MAX = 64 << 10  # a request's first line and headers; the parser itself would take any amount
HEAD_S_MAX = 10.0  # and any time
CONNECTIONS_MAX = 4_096  # some 100 KB each when busy; agents have a port of their own
IDLE_S_MAX = 60  # a connection that is kept for another request; clients close theirs sooner
BACKLOG = 1_024
HANDSHAKE_S_MAX = 5.0  # of TLS: four messages; who needs longer is not there
DATE_S = 1.0  # the date in answers is renewed so often


class Protocol(HttpToolsProtocol):
    """One connection. Whoever sends a head without end, or none at all, is cut off."""

    _head_bytes = 0
    _in_head = True
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._head_timer = self.loop.call_later(HEAD_S_MAX, self._cut_off)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self._in_head:
            return
        self._head_bytes += len(data)
        if self._head_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(f"the head of a request may have {HEAD_BYTES_MAX} bytes")

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S_MAX, self._cut_off)
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
        super().connection_lost(exc)

    def _cut_off(self) -> None:
        self.transport.close()


class Web(uvicorn.Server):
    """uvicorn under our own signals: it runs until told to leave, and looks up once a second instead of ten times."""

    def __init__(self, app: App, grace_s: float) -> None:
        config = uvicorn.Config(
            app,  # type: ignore[arg-type]
            http=Protocol,
            ws="none",
            loop="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=CONNECTIONS_MAX,
            timeout_keep_alive=IDLE_S_MAX,
            timeout_graceful_shutdown=grace_s,  # type: ignore[arg-type]
            backlog=BACKLOG,
        )
        super().__init__(config)
        self.servers: list[asyncio.base_events.Server] = []
        self.ready = asyncio.Event()
        self._leaving = asyncio.Event()
        self._tls: ssl.SSLContext | None = None

    def show(self, tls: ssl.SSLContext | None) -> None:
        """Speak TLS with this context; its certificate may be changed while it is in use."""
        self._tls = tls

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until told to leave. Whatever ends it, nothing is left in the loop."""
        try:
            await super().serve(sockets)
        finally:
            for server in self.servers:
                server.close()

    def leave(self) -> None:
        """Take no more requests, finish those under way, and end."""
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's for sockets that are given, with a bound on how long a handshake takes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        bound_s = HANDSHAKE_S_MAX if self._tls is not None else None
        for sock in sockets or ():
            server = await loop.create_server(
                self._protocol, sock=sock, backlog=BACKLOG, ssl=self._tls, ssl_handshake_timeout=bound_s
            )
            self.servers.append(server)
        self.started = True
        self.ready.set()

    def _protocol(self) -> Protocol:
        return Protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(DATE_S):
                    await self._leaving.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens. Raises OSError when the port is taken or the name means nothing."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    made = socket.socket(family, kind, protocol)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(BACKLOG)
        made.setblocking(False)
    except OSError:
        made.close()
        raise
    return made
