"""The network interface of a machine on a bridge of its node: it is gone with the last descriptor of it."""

import _socket
import fcntl
import os
import struct

TUN = "/dev/net/tun"
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
_SIOCBRADDIF, _SIOCGIFINDEX, _SIOCSIFFLAGS = 0x89A2, 0x8933, 0x8914
_IFF_UP = 1


class TapRefused(Exception):
    """The machine cannot be on its bridge; the message says why."""


def open_tap(bridge: str) -> int:
    """A new interface on the bridge. Needs root or CAP_NET_ADMIN. Raises TapRefused."""
    fd = -1
    try:
        fd = os.open(TUN, os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK)
        flags = _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR
        made = fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"roost%d", flags))
        name = made[:16].rstrip(b"\0")
        sock = _socket.socket(_socket.AF_INET, _socket.SOCK_DGRAM)
        try:
            index = struct.unpack("16xi", fcntl.ioctl(sock, _SIOCGIFINDEX, struct.pack("16sI", name, 0)))[0]
            fcntl.ioctl(sock, _SIOCBRADDIF, struct.pack("16si20x", bridge.encode(), index))
            fcntl.ioctl(sock, _SIOCSIFFLAGS, struct.pack("16sH22x", name, _IFF_UP))
        finally:
            sock.close()
    except OSError as error:
        if fd >= 0:
            os.close(fd)
        raise TapRefused(f"network: no interface on the bridge {bridge}: {error.strerror}") from error
    return fd
