"""Web: the HTTP server itself. uvicorn, with bounds it lacks: how large and how slow a request may be."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import Iterator
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from roost.server.auth.middleware import App
from roost.server.auth.principal import Principal
from roost.server.http.connections import CONNECTION, CONNECTIONS_MAX, Connections
from roost.server.http.tunnels import MESSAGE_BYTES_MAX, WebSocketProtocol
from roost.server.observability import logging as observability_logging
from roost.server.waiting import wait_for

HEAD_BYTES_MAX = 64 << 10  # a request's first line and headers; the parser itself would take any amount
HEAD_S_MAX = 10.0  # and any time; also for the rest of a body whose request was answered before it was here
PIPELINE_MAX = 64  # requests that wait for the answers before theirs; uvicorn would take 10,000 with one read
# Without reading anything that was written; a follower that wakes up reconnects. The system takes up to
# 4 MB by itself and asks for more when a third is read: a line with 11 KB/s is not called silent.
STALL_S_MAX = 120.0
IDLE_S_MAX = 60  # a connection that is kept for another request; clients close theirs sooner
BACKLOG = 1_024
VERSIONS = ("1.0", "1.1")  # the parser knows others
HANDSHAKE_S_MAX = 5.0  # of TLS: four messages; who needs longer is not there
DATE_S = 1.0  # the date in answers is renewed so often


class Protocol(HttpToolsProtocol):
    """One connection. A client that sends without end, never finishes, or never reads its answers is cut off."""

    refused: observability_logging.RateLimitedLogger  # who tells of it
    others: Connections
    _is_in_head = True
    _is_whole = True  # all of the request is here; what follows is another one
    _head_bytes = 0  # of the request's head as it was read
    _loose_bytes = 0  # that came since the last piece of a body, and are none: of a head, or after a body
    _is_body = False
    _timer: asyncio.TimerHandle | None = None  # for what the client has begun
    _stall: asyncio.TimerHandle | None = None  # for answers that it does not read

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._expect_more()
        self.others.open(self, self._where())

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect_nothing()
        self.others.close(self)
        self.resume_writing()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_whole:  # empty lines before a request are no request, and end the wait for one all the same
            self._expect_more()
        self._is_body = False
        super().data_received(data)
        self._loose_bytes = 0 if self._is_body else self._loose_bytes + len(data)
        if self._loose_bytes > HEAD_BYTES_MAX and not self.transport.is_closing():
            self.send_400_response(f"the head of a request may have {HEAD_BYTES_MAX} bytes")

    def handle_websocket_upgrade(self) -> None:
        """The connection goes on with another protocol, and ends there."""
        self._expect_nothing()

        def made(**given: Any) -> WebSocketProtocol:
            protocol = WebSocketProtocol(**given)
            protocol.before, protocol.others = self, self.others
            return protocol

        self.ws_protocol_class = made  # type: ignore[assignment]
        super().handle_websocket_upgrade()

    def send_400_response(self, msg: str) -> None:
        self.refused.warning("request refused", where=self._where(), why=msg)
        super().send_400_response(msg)

    # what the parser has found

    def on_message_begin(self) -> None:
        self._is_in_head, self._is_whole, self._head_bytes, self._loose_bytes = True, False, 0, 0
        self._expect_more()
        super().on_message_begin()
        self.scope[CONNECTION] = self  # type: ignore[literal-required]

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        if self._is_in_head:  # those that follow a body are not used
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head, self._loose_bytes = False, 0
        self._expect_nothing()
        # An error stops the parser, and uvicorn refuses the rest.
        if self.parser.get_http_version() not in VERSIONS:
            raise ValueError("another HTTP")
        if not self.url.startswith((b"/", b"http://", b"https://")):
            raise ValueError("no path")
        if len(self.pipeline) >= PIPELINE_MAX:
            raise ValueError("too many requests at once")
        if len(self.connections) >= CONNECTIONS_MAX:
            self.refused.warning("request refused", where=self._where(), why="there are too many connections")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._is_body = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._is_whole, self._is_body = True, True
        self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._is_whole and not self.transport.is_closing():
            self._expect_more()  # the rest of an unread body, or of the next head

    def _count(self, size: int) -> None:
        self._head_bytes += size
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError("too large a head")

    # who takes too long

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall is None:
            self._stall = self.loop.call_later(STALL_S_MAX, self._inspect, self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall is not None:
            self._stall.cancel()
            self._stall = None

    def _inspect(self, before: int) -> None:
        """Slow is not silent: a client that has read anything since goes on."""
        left = self.transport.get_write_buffer_size()
        if left >= before:
            self.cut_off("did not read its answer")
        else:
            self._stall = self.loop.call_later(STALL_S_MAX, self._inspect, left)

    def _expect_more(self) -> None:
        if self._timer is None:
            self._timer = self.loop.call_later(HEAD_S_MAX, self._late)

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self) -> None:
        self._timer = None
        if self.cycle is None or self.cycle.response_complete:  # else: when the answer under way is complete
            self.cut_off("did not finish its request")

    def admit(self, principal: Principal) -> None:
        """A request has shown a token. Raises NoService if its principal has too many connections."""
        self.others.admit(self, principal)

    def cut_off(self, why: str) -> None:
        """At once: a close would wait until all that is written was read."""
        self.refused.warning("connection cut off", where=self._where(), why=why)
        self.transport.abort()

    def _where(self) -> str:
        return self.client[0] if self.client else ""


class Web(uvicorn.Server):
    """uvicorn under our own signals: it runs until `leave`, and wakes up once a second instead of ten times."""

    def __init__(self, app: App, grace_s: float) -> None:
        config = uvicorn.Config(
            app,
            http=Protocol,
            ws=WebSocketProtocol,
            ws_max_size=MESSAGE_BYTES_MAX,
            ws_per_message_deflate=False,
            ws_ping_interval=None,  # a client whose input must wait is not read, and could not be heard
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
        self.tls: ssl.SSLContext | None = None  # its certificate may be changed while it is in use
        self._refused = observability_logging.RateLimitedLogger("web")
        self._connections = Connections()
        # Its warnings are about what clients do, without their addresses and without a limit: ours are instead.
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve until `leave`. Nothing is left in the loop afterwards."""
        try:
            await super().serve(sockets)
        finally:
            for server in self.servers:
                server.close()

    def leave(self) -> None:
        """Accept no more requests, finish those in progress, and end."""
        self.should_exit = True
        self._leaving.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """As uvicorn's for given sockets, with a time limit for handshakes."""
        await self.lifespan.startup()
        loop = asyncio.get_running_loop()
        bound_s = HANDSHAKE_S_MAX if self.tls is not None else None
        for sock in sockets or ():
            server = await loop.create_server(
                self._protocol, sock=sock, backlog=BACKLOG, ssl=self.tls, ssl_handshake_timeout=bound_s
            )
            self.servers.append(server)
        self.started = True
        self.ready.set()

    def _protocol(self) -> Protocol:
        made = Protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)
        made.refused = self._refused
        made.others = self._connections
        return made

    async def main_loop(self) -> None:
        while not await self.on_tick(0):
            await wait_for(self._leaving, DATE_S)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises OSError when the port is in use or the name is unknown."""
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
