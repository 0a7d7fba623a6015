"""Runs processes through the keeper: JSON lines on its socket, orders of one turn in one write."""

import asyncio
import os
import socket
from collections.abc import Callable

import msgspec

from roost.ports.driver import Event, Run, Tell

PING_S = 2.0  # the keeper takes an agent that says nothing for 10 s for hung
LINE_MAX = 64 << 20  # the first word of a keeper holds all its runs: 8,192 of 8 KiB

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Event).decode


class ProcessDriver(asyncio.Protocol):
    """A connection to the keeper. `gone` is called when it ends: a keeper that is gone takes this process with it."""

    def __init__(self, tell: Tell, gone: Callable[[], None]) -> None:
        self._tell = tell
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[bytes] = []
        self._in = b""
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

    def start(self, run: Run) -> None:
        """Begin a run."""
        order = msgspec.structs.asdict(run)
        order["do"] = "start"
        self._order(order)

    def stop(self, id: str, grace_ms: int, why: str) -> None:
        """TERM, grace, KILL."""
        self._order({"do": "stop", "id": id, "grace_ms": grace_ms, "why": why})

    def forget(self, id: str) -> None:
        """Drop what is known of a run that has ended."""
        self._order({"do": "forget", "id": id})

    def lease(self, until_ms: int) -> None:
        """Leased runs may go on until then."""
        self._order({"do": "lease", "until": until_ms})

    def close(self) -> None:
        """Let go of the keeper; runs go on."""
        if self._ping is not None:
            self._ping.cancel()
        if self._transport is not None:
            self._flush()
            self._gone = lambda: None
            self._transport.close()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The keeper took us."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Words of the keeper."""
        *lines, self._in = (self._in + data).split(b"\n")
        for line in lines:
            self._tell(_decode(line))
        if len(self._in) > LINE_MAX:
            raise ValueError("the keeper said more in one line than it can have to say")

    def connection_lost(self, exc: Exception | None) -> None:
        """The keeper is gone, or another agent took our place."""
        if self._ping is not None:
            self._ping.cancel()
        self._gone()

    def _order(self, order: dict[str, object]) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(_encode(order))

    def _flush(self) -> None:
        if self._out and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"\n".join(self._out) + b"\n")
        self._out.clear()

    def _keep_pinging(self) -> None:
        self._order({"do": "ping"})
        self._ping = self._loop.call_later(PING_S, self._keep_pinging)
