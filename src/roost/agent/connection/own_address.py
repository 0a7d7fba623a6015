"""The address at which others reach this machine, by default: the one on its route to the server."""

import asyncio
import socket

LOOK_UP_S_MAX = 1.0  # for a name without an answer; then the address stays as it was


async def own_address(server: str) -> str:
    """This machine's IP address on the way to HOST:PORT; nothing: there is no way. Nothing is sent to find out."""
    host, _, port = server.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or len(port) > len("65535"):
        return ""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(LOOK_UP_S_MAX):
            found = await loop.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)
    except (OSError, ValueError, OverflowError):  # no such name, none that can be, no such port
        return ""
    for family, kind, protocol, _, place in found:
        try:
            with socket.socket(family, kind, protocol) as way:
                way.connect(place)  # of a datagram socket: only which way it would go is looked up
                return str(way.getsockname()[0])
        except OSError:
            continue
    return ""
