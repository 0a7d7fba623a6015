"""The keeper's socket: JSON lines, one agent at a time; the newest connection wins. Never waits for a slow reader."""

import json
import os
import select
import socket

from roost.keeper.clock import NEVER

IN_MAX = 4 << 20  # one order: arguments and environment may be 2 MiB (ARG_MAX), and JSON escapes some of it
OUT_MAX = 4 << 20  # 20,000 events without a reader; the next connection gets the state instead
READ_SIZE = 1 << 16
HOLD_MS = 2  # for which news that can wait do: a short run's start and end are one message, and wake the agent once
SOCKET_NAME = "keeper.sock"
PROTOCOL = 3  # grows with every change that the other side has to understand; an agent refuses another number

encode = json.JSONEncoder(separators=(",", ":")).encode
quote = json.encoder.encode_basestring_ascii  # what `encode` does with a string, without the way there


class KeeperSocket:
    """Bytes in, lines out, and back. What the lines mean is not its business."""

    def __init__(self, epoll: select.epoll) -> None:
        """Listens in the current directory: the name is short then, however long the path is (a limit of 108 bytes)."""
        self.epoll = epoll
        self.connection: socket.socket | None = None
        self.fd = -1
        self.buffer = memoryview(bytearray(READ_SIZE))  # one for all: a new one each time costs three system calls
        self.pending_in = b""
        self.lines_out: list[str] = []
        self.pending_out = b""
        self.out_max = OUT_MAX
        self.flush_at = NEVER
        self.blocked = False  # the reader's buffer is full; the loop notices when it has room
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        if os.path.lexists(SOCKET_NAME):
            os.unlink(SOCKET_NAME)
        umask = os.umask(0o177)
        try:
            self.listener.bind(SOCKET_NAME)
        finally:
            os.umask(umask)
        self.listener.listen(8)
        self.listener.setblocking(False)
        epoll.register(self.listener.fileno(), select.EPOLLIN)

    def accept(self, greeting: str) -> None:
        """Take the newest connection, and tell it first of all what there is."""
        try:
            connection, _ = self.listener.accept()
        except OSError:  # it is gone again, or we have no descriptor left: it will come again
            return
        self.drop()
        connection.setblocking(False)
        self.connection = connection
        self.fd = connection.fileno()
        self.epoll.register(self.fd, select.EPOLLIN)
        self.emit(greeting)
        self.out_max = OUT_MAX + len(greeting)

    def drop(self) -> None:
        """Close the connection; what was not sent goes to the next one, as state."""
        if self.connection is not None:
            self.epoll.unregister(self.fd)
            self.connection.close()
        self.connection = None
        self.fd = -1
        self.pending_in = self.pending_out = b""
        self.blocked = False
        self.flush_at = NEVER
        self.lines_out.clear()

    def read(self) -> list[bytes]:
        if self.connection is None:
            return []
        try:
            data = bytes(self.buffer[: self.connection.recv_into(self.buffer)])
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.drop()
            return []
        *lines, self.pending_in = (self.pending_in + data).split(b"\n")
        if len(self.pending_in) > IN_MAX:
            self.drop()
        return lines

    def emit(self, line: str, now: int = 0, hold_ms: int = 0) -> None:
        """Send with the next line that cannot wait, or after this time. Without a reader it is dropped: the next reader
        gets the state."""
        if self.connection is not None:
            if not hold_ms or not self.lines_out:
                self.flush_at = now + hold_ms
            self.lines_out.append(line)

    def flush(self, now: int) -> None:
        """Send what has gathered in one go, as much as goes. Too much of it means that the reader hangs: drop it."""
        if self.connection is None or (self.flush_at > now and not self.pending_out):
            return
        self.flush_at = NEVER
        if self.lines_out:
            self.lines_out.append("")
            self.pending_out += "\n".join(self.lines_out).encode()
            self.lines_out.clear()
        try:
            sent = self.connection.send(self.pending_out)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop()
            return
        self.pending_out = self.pending_out[sent:]
        if len(self.pending_out) > self.out_max:
            self.drop()
        elif bool(self.pending_out) != self.blocked:
            self.blocked = not self.blocked
            self.epoll.modify(self.fd, select.EPOLLIN | (select.EPOLLOUT if self.blocked else 0))

    def close(self) -> None:
        self.drop()
        self.listener.close()
        if os.path.lexists(SOCKET_NAME):
            os.unlink(SOCKET_NAME)
