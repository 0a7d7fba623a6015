"""What the keeper and a slot say to each other: one packet each, with open files beside it."""

import array
import marshal
import os
import socket

PACKET_MAX = 64 << 10  # larger messages travel in a file in memory: a socket takes some 200 KiB at most
SIZE_MAX = 8 << 20  # arguments and environment of 2 MiB, and room
FILES_MAX = 3
_INT = array.array("i").itemsize


class Broken(Exception):
    """The other side is gone, or does not read."""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(to: socket.socket, message: tuple[object, ...], files: "tuple[int, ...]" = ()) -> None:
    """Raises Broken; never waits on a socket that does not block."""
    data = marshal.dumps(message)  # type: ignore[arg-type]
    large = -1
    try:
        if len(data) > PACKET_MAX:
            large = os.memfd_create("message")
            os.write(large, data)
            data, files = b"", (large, *files)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", files))] if files else []
        to.sendmsg([data or b"\0"], rights)
    except OSError as error:
        raise Broken(os.strerror(error.errno or 0)) from error
    finally:
        if large >= 0:
            os.close(large)


def receive(at: socket.socket) -> "tuple[tuple[object, ...], list[int]]":
    """Raises Broken at the end, BlockingIOError when there is nothing."""
    try:
        data, extra, _, _ = at.recvmsg(PACKET_MAX, socket.CMSG_LEN(FILES_MAX * _INT), socket.MSG_CMSG_CLOEXEC)
    except BlockingIOError:
        raise
    except OSError as error:
        raise Broken(os.strerror(error.errno or 0)) from error
    if not data:
        raise Broken("the other side has closed the connection")
    files = array.array("i")
    for level, kind, content in extra:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            files.frombytes(content[: len(content) - len(content) % _INT])
    given = list(files)
    if data == b"\0":
        large = given.pop(0)
        try:
            data = os.pread(large, SIZE_MAX, 0)
        finally:
            os.close(large)
    return marshal.loads(data), given
