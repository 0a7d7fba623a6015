"""Posting to strangers: one request, nothing followed, everything bounded, and never to an address that is not meant.

A name is resolved first, and the connection goes to the address that was looked at: a name that means another address
a moment later changes nothing.
"""

import asyncio
import ipaddress
import socket
import ssl
import time
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple
from urllib.parse import urlsplit

TRY_S_MAX = 10.0  # everything: the name, the connection, the answer
HEAD_BYTES_MAX = 16 << 10  # of an answer's first line
ANSWER_BYTES_MAX = 64 << 10  # of the body, which is not used: it is read so that the sender can finish
ANSWER_S_MAX = 1.0
INTERIM_MAX = 5  # answers like 100 Continue before the real one
RESOLVERS_MAX = 8  # threads that wait for name servers; a dead one keeps a thread for up to half a minute
NAMES_MAX = 1_000
NAME_S = 60.0  # how long the addresses of a name are believed

#: Where clouds tell machines their secrets; 169.254.169.254 and all of its kind are refused as link-local.
METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")))
NAT64 = ipaddress.ip_network("64:ff9b::/96")

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class PostOutcome(NamedTuple):
    """How a try went. `away`: there was no answer at all, so other events need not be tried there now."""

    ok: bool
    code: int = 0  # what was answered: a status, or an exit code
    message: str = ""
    away: bool = False


class Poster:
    """Posts to where it may."""

    def __init__(self, *, to_loopback: bool = False, try_s_max: float = TRY_S_MAX) -> None:
        self._to_loopback = to_loopback
        self._try_s_max = try_s_max
        self._resolvers = ThreadPoolExecutor(RESOLVERS_MAX, thread_name_prefix="hook-names")
        self._known: dict[tuple[str, int], tuple[float, str]] = {}
        self._context: ssl.SSLContext | None = None

    def close(self) -> None:
        """Let go of the threads."""
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
        context = self._verifying() if parts.scheme == "https" else None
        reader, writer = await asyncio.open_connection(
            address, port, ssl=context, server_hostname=host if context else None, limit=HEAD_BYTES_MAX
        )  # fmt: skip
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            writer.write(_head(target, parts.netloc, headers, len(body)) + body)
            await writer.drain()
            code = await _status(reader)
            await _drain(reader)
            return code
        finally:
            writer.transport.abort()  # an answer without an end is cut off

    async def _address(self, host: str, port: int) -> str:
        """An address of a host that may be posted to. Raises OSError."""
        literal = literal_of(host)
        if literal is not None:
            refusal = refusal_of(literal, to_loopback=self._to_loopback)
            if refusal:
                raise OSError(refusal)
            return str(literal)
        until_s, address = self._known.get((host, port), (0.0, ""))
        if time.monotonic() < until_s:
            return address
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._resolvers, _resolve, host, port)
        refusal = f"{host} has no address"
        for item in found:
            refusal = refusal_of(item, to_loopback=self._to_loopback)
            if not refusal:
                if len(self._known) >= NAMES_MAX:
                    self._known.clear()
                self._known[host, port] = (time.monotonic() + NAME_S, str(item))
                return str(item)
        raise OSError(refusal)

    def _verifying(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = ssl.create_default_context()
        return self._context


def literal_of(host: str) -> Address | None:
    """A host that is an address."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def refusal_of(address: Address, *, to_loopback: bool) -> str:
    """Why an address is not posted to; "": it may be. An IPv4 address within an IPv6 address counts also."""
    inner: Address | None = None
    if isinstance(address, ipaddress.IPv6Address):
        inner = address.ipv4_mapped or address.sixtofour
        if address in NAT64:
            inner = ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)
    if inner is not None:
        return refusal_of(inner, to_loopback=to_loopback)
    if address.is_loopback:
        message = "is the server's own machine; only a server with --hooks-to-loopback posts there"
        return "" if to_loopback else f"{address} {message}"
    if address.is_link_local or address in METADATA:
        return f"{address} is link-local or a cloud's metadata service: nothing is posted there"
    if address.is_unspecified or address.is_multicast or (address.is_reserved and not address.is_private):
        return f"{address} is no address of a host"
    return ""


def _resolve(host: str, port: int) -> list[Address]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [ipaddress.ip_address(str(item[4][0]).partition("%")[0]) for item in found]


def _head(target: str, host: str, headers: dict[str, str], length: int) -> bytes:
    lines = [f"POST {target} HTTP/1.1", f"Host: {host}", *(f"{name}: {value}" for name, value in headers.items())]
    lines += ["Content-Type: application/json", f"Content-Length: {length}", "Connection: close", "", ""]
    return "\r\n".join(lines).encode("ascii")


async def _status(reader: asyncio.StreamReader) -> int:
    for _ in range(INTERIM_MAX):
        line = await reader.readuntil(b"\n")
        arguments = line.split(None, 2)
        if (
            len(arguments) < 2
            or not arguments[0].startswith(b"HTTP/1.")
            or not arguments[1].isdigit()
            or len(arguments[1]) != 3
        ):
            raise ValueError(f"it does not answer in HTTP: {line!r:.60}")
        code = int(arguments[1])
        if code >= 200:
            return code
        while (await reader.readuntil(b"\n")).strip():
            pass  # bounded by the time of a try
    raise ValueError("it answers again and again that an answer is to come")


async def _drain(reader: asyncio.StreamReader) -> None:
    left = ANSWER_BYTES_MAX
    try:
        async with asyncio.timeout(ANSWER_S_MAX):
            while left > 0 and (piece := await reader.read(left)):
                left -= len(piece)
    except (TimeoutError, OSError):
        pass  # the answer was there


def _reason(error: BaseException) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not believed: {error.verify_message}"[:200]
    if isinstance(error, EOFError):
        return "the connection was closed without an answer"
    message = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return str(message)[:200]
