"""Runs processes through the keeper: JSON lines on its socket, orders of one turn in one write."""

import asyncio
import os
import socket
from collections.abc import Callable
from typing import cast

import msgspec

from roost.model.states import PowerAction
from roost.ports.driver import Event, RunRequest, StopReason, Tell

PING_S = 2.0  # the keeper takes an agent that says nothing for 10 s for hung
LINE_MAX = 256 << 20  # the first message of a keeper holds all its runs: 128 MiB of notes, and room for the rest

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class ProcessDriver(asyncio.Protocol):
    """A connection to the keeper. `gone` is called when it ends, and then this process should also end.

    It does not connect again: either the keeper is gone, and an agent without one can do nothing, or the keeper lives
    and starts the agent anew, which is sent everything. Orders given after the end are dropped.
    """

    def __init__(self, tell: Tell, gone: Callable[[], None]) -> None:
        self._tell = tell
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._in: list[bytes] = []  # of a line that is not complete
        self._in_size = 0
        self._ping: asyncio.TimerHandle | None = None

    async def connect(self, path: str) -> None:
        """Connect to the keeper's socket, however long its path is (a socket's own limit is 108 bytes)."""
        directory = os.open(os.path.dirname(path) or ".", os.O_RDONLY | os.O_DIRECTORY)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.connect(f"/proc/self/fd/{directory}/{os.path.basename(path)}")
            sock.setblocking(False)
            await self._loop.create_unix_connection(lambda: self, sock=sock)
        except BaseException:
            sock.close()
            raise
        finally:
            os.close(directory)
        self._keep_pinging()

    def start(self, run: RunRequest) -> None:
        self._order(run)

    def stop(self, id: str, grace_ms: int, why: StopReason, detail: str = "") -> None:
        self._order({"do": "stop", "id": id, "grace_ms": grace_ms, "why": why, "detail": detail})

    def power(self, id: str, serial: int, action: PowerAction, grace_ms: int) -> None:
        self._order({"do": "power", "id": id, "serial": serial, "action": action, "grace_ms": grace_ms})

    def forget(self, id: str) -> None:
        self._order({"do": "forget", "id": id})

    def lease(self, until_ms: int) -> None:
        self._order({"do": "lease", "until": until_ms})

    def close(self) -> None:
        if self._ping is not None:
            self._ping.cancel()
        if self._transport is not None:
            self._flush()
            self._gone = lambda: None
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not of that class

    def data_received(self, data: bytes) -> None:
        head, *lines = data.split(b"\n")
        self._in.append(head)
        self._in_size += len(head)
        if self._in_size > LINE_MAX:
            raise ValueError("the keeper sent a longer line than it can have to send")
        if not lines:
            return
        first = b"".join(self._in)
        self._in = [lines.pop()]
        self._in_size = len(self._in[0])
        for line in (first, *lines):
            self._tell(_decode(line))

    def connection_lost(self, exc: Exception | None) -> None:
        """The keeper is gone, or another agent took our place."""
        if self._ping is not None:
            self._ping.cancel()
        self._gone()

    def _order(self, order: RunRequest | dict[str, object]) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(_encode(order))

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._out.append(b"")
            self._transport.write(b"\n".join(self._out))
        self._out.clear()

    def _keep_pinging(self) -> None:
        self._order({"do": "ping"})
        self._ping = self._loop.call_later(PING_S, self._keep_pinging)
