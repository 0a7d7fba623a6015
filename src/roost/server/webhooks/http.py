"""Posting to foreign servers: one request, no redirects, everything bounded, and never to a refused address.

A name is resolved first, and the connection goes to the address that was checked: a name that resolves differently a
moment later changes nothing.
"""

import asyncio
import ipaddress
import re
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from typing import NamedTuple
from urllib.parse import urlsplit

from roost.server.webhooks.destinations import Address, Destinations, literal_of

TRY_S_MAX = 10.0  # everything: the name, the connection, the answer
HEAD_BYTES_MAX = 16 << 10  # of an answer's first line
ANSWER_BYTES_MAX = 64 << 10  # of the body, which is not used: it is read so that the receiver can finish
ANSWER_S_MAX = 1.0
INTERIM_MAX = 5  # answers like 100 Continue before the real one
RESOLVERS_MAX = 8  # threads that wait for name servers; a dead one keeps a thread for up to half a minute
NAMES_MAX = 1_000
NAME_S = 60.0  # how long the addresses of a name are cached


class PostOutcome(NamedTuple):
    """Outcome of a try. `away`: there was no answer at all, so other events need not be tried there now."""

    ok: bool
    code: int = 0  # a status, or an exit code
    message: str = ""
    away: bool = False


class Poster:
    def __init__(self, destinations: Destinations, try_s_max: float = TRY_S_MAX) -> None:
        self._destinations = destinations
        self._try_s_max = try_s_max
        self._resolvers = ThreadPoolExecutor(RESOLVERS_MAX, thread_name_prefix="hook-names")
        self._known: dict[tuple[str, int], tuple[float, str]] = {}

    def close(self) -> None:
        self._resolvers.shutdown(wait=False, cancel_futures=True)

    async def post(self, url: str, headers: dict[str, str], body: bytes) -> PostOutcome:
        """One try. Never raises; a status of 200 to 299 is success."""
        try:
            async with asyncio.timeout(self._try_s_max):
                code = await self._post(url, headers, body)
        except TimeoutError:
            return PostOutcome(False, 0, f"no answer within {self._try_s_max:g} s", away=True)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            return PostOutcome(False, 0, _reason(error), away=True)
        if 200 <= code < 300:
            return PostOutcome(True, code)
        more = "; redirects are not followed" if 300 <= code < 400 else ""
        return PostOutcome(False, code, f"it answers with status {code}{more}")

    async def _post(self, url: str, headers: dict[str, str], body: bytes) -> int:
        parts = urlsplit(url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        address = await self._address(host, port)
        context = self._context if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            address, port, ssl=context, server_hostname=host if context else None, limit=HEAD_BYTES_MAX
        )  # fmt: skip
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            fields = {"Host": parts.netloc, **headers, "Content-Type": "application/json"}
            fields |= {"Content-Length": str(len(body)), "Connection": "close"}
            lines = [f"POST {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
            writer.write("\r\n".join(lines).encode("ascii") + body)
            await writer.drain()
            code = await _status(reader)
            await _drain(reader)
            return code
        finally:
            writer.transport.abort()  # an answer without an end is cut off

    async def _address(self, host: str, port: int) -> str:
        """An address of a host that may be posted to. Raises OSError."""
        until_s, address = self._known.get((host, port), (0.0, ""))
        if time.monotonic() < until_s:
            return address
        literal = literal_of(host)
        loop = asyncio.get_running_loop()
        found = [literal] if literal is not None else await loop.run_in_executor(self._resolvers, _resolve, host, port)
        refusal = f"{host} has no address"
        for item in found:
            refusal = self._destinations.refusal(item)
            if not refusal:
                if len(self._known) >= NAMES_MAX:
                    self._known.clear()
                self._known[host, port] = (time.monotonic() + NAME_S, str(item))
                return str(item)
        raise OSError(refusal)

    @cached_property
    def _context(self) -> ssl.SSLContext:
        return ssl.create_default_context()


def _resolve(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]


async def _status(reader: asyncio.StreamReader) -> int:
    for _ in range(INTERIM_MAX):
        line = await reader.readuntil(b"\n")
        found = re.match(rb"\s*HTTP/1\.\S*\s+(\d{3})(\s|$)", line)
        if not found:
            raise ValueError("it does not answer in HTTP")
        code = int(found[1])
        if code >= 200:
            return code
        while (await reader.readuntil(b"\n")).strip():
            pass  # bounded by the time of a try
    raise ValueError("it answers again and again that an answer is to come")


async def _drain(reader: asyncio.StreamReader) -> None:
    left = ANSWER_BYTES_MAX
    with suppress(TimeoutError, OSError):  # the status has arrived already
        async with asyncio.timeout(ANSWER_S_MAX):
            while left > 0 and (piece := await reader.read(left)):
                left -= len(piece)


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"[:200]
    if isinstance(error, EOFError):
        return "the connection was closed without an answer"
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(message)[:200]
