"""A server behind a real port, spoken to in bytes: for requests that no client would send."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from roost.server.http.server import Web, listen
from tests.server.http.test_server import Line
from tests.server.inprocess_server import TOKEN, InprocessServer

HEAD = f"Host: roost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
#: A request that would be noticed, hidden where only one of two readers of the same bytes would see it.
HIDDEN_BODY = b'{"name": "smuggled", "command": "true"}'
HIDDEN = b"POST /v1/workloads HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s" % (HEAD, len(HIDDEN_BODY), HIDDEN_BODY)


class Port:
    """Where the server is reached."""

    def __init__(self, web: Web, port: int) -> None:
        self.web = web
        self.port = port

    @property
    def connections(self) -> set[Any]:
        """Those that the server has open."""
        return self.web.server_state.connections

    @asynccontextmanager
    async def line(self, tls: ssl.SSLContext | None = None) -> AsyncIterator[Line]:
        """A connection."""
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=tls, server_hostname="127.0.0.1" if tls else None
        )
        try:
            yield Line(reader, writer)
        finally:
            writer.transport.abort()

    async def socket(self, text: bytes, receive_bytes: int) -> socket.socket:
        """A connection that says something, and has so much room for what comes."""
        made = socket.socket()
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
        made.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(made, ("127.0.0.1", self.port))
        await loop.sock_sendall(made, text)
        return made


@asynccontextmanager
async def port_of(made: InprocessServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[Port]:
    """The server as it is served."""
    web = Web(made.door, grace_s=0.2)
    web.tls = tls
    listener = listen("127.0.0.1", 0)
    async with asyncio.TaskGroup() as group:
        group.create_task(web.serve(sockets=[listener]))
        await web.ready.wait()
        try:
            yield Port(web, listener.getsockname()[1])
        finally:
            made.watch.close()
            web.leave()


async def everything(line: Line) -> bytes:
    """All that comes until the connection is closed."""
    received = bytearray()
    async with asyncio.timeout(10):
        try:
            while piece := await line.reader.read(65_536):
                received += piece
        except ConnectionError:
            pass
    return bytes(received)
