"""The serial console of one machine: every byte goes to the log, and one client at a time may attach to it.

A client connects to the socket `console.sock` in the work directory: it gets what the guest writes from then on, and
what it sends is typed. A client that is slow loses bytes; the log has them all.
"""

import _socket
import os
import select

SOCKET_NAME = "console.sock"
READ_BYTES = 1 << 16
BUFFER_BYTES_MAX = 1 << 18  # each way: a guest that does not read stops its client, a slow client loses bytes
TAKEN = b"console: another client is attached\r\n"


class SerialConsole:
    def __init__(self, log_fd: int, epoll: select.epoll) -> None:
        """Listens in the current directory. Raises OSError."""
        self.log_fd = log_fd
        self.epoll = epoll
        self.guest: _socket.socket | None = None
        self.client: _socket.socket | None = None
        self.to_guest = b""
        self.to_client = b""
        self.listener = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
        remove()
        umask = os.umask(0o177)
        try:
            self.listener.bind(SOCKET_NAME)
        finally:
            os.umask(umask)
        self.listener.listen(4)
        epoll.register(self.listener.fileno(), select.EPOLLIN)

    def connect(self, guest: _socket.socket) -> None:
        """A new QEMU has begun, with the other side of this socket."""
        self.disconnect()
        self.guest = guest
        guest.setblocking(False)
        self.epoll.register(guest.fileno(), select.EPOLLIN)

    def disconnect(self) -> None:
        """QEMU is gone: what it wrote last is in the log."""
        if self.guest is not None:
            self._read_guest()
        if self.guest is not None:
            self._close_guest()
        self.to_guest = b""

    def turn(self, ready: set[int]) -> None:
        if self.guest is not None and self.guest.fileno() in ready:
            self._read_guest()
        if self.client is not None and self.client.fileno() in ready:
            self._read_client()
        if self.listener.fileno() in ready:
            self._accept()
        self._send()

    def close(self) -> None:
        self.disconnect()
        self._close_client()
        self.listener.close()
        remove()

    def _read_guest(self) -> None:
        assert self.guest is not None
        while True:
            try:
                data = self.guest.recv(READ_BYTES)
            except BlockingIOError:
                return
            except OSError:
                data = b""
            if not data:
                self._close_guest()
                return
            if self.client is not None:
                self.to_client = (self.to_client + data)[:BUFFER_BYTES_MAX]
            while data:
                data = data[os.write(self.log_fd, data) :]

    def _read_client(self) -> None:
        assert self.client is not None
        try:
            data = self.client.recv(min(READ_BYTES, BUFFER_BYTES_MAX - len(self.to_guest)))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._close_client()
        elif self.guest is not None:
            self.to_guest += data

    def _accept(self) -> None:
        try:
            fd, _ = self.listener._accept()  # type: ignore[attr-defined]
        except OSError:
            return
        client = _socket.socket(fileno=fd)
        client.setblocking(False)
        if self.client is not None:
            client.send(TAKEN)
            client.close()
            return
        self.client, self.to_client = client, b""
        self.epoll.register(client.fileno(), select.EPOLLIN)

    def _send(self) -> None:
        """Pass on what can be, and wait for room where there is more."""
        if self.guest is not None:
            self.to_guest = self._sent(self.guest, self.to_guest)
            self._wait_for(self.guest, reads=True, writes=bool(self.to_guest))
        if self.client is not None:
            self.to_client = self._sent(self.client, self.to_client)
            reads = len(self.to_guest) < BUFFER_BYTES_MAX
            self._wait_for(self.client, reads=reads, writes=bool(self.to_client))

    def _sent(self, sock: _socket.socket, data: bytes) -> bytes:
        try:
            return data[sock.send(data) :] if data else data
        except BlockingIOError:
            return data
        except OSError:
            return b""  # its end is noticed by reading

    def _wait_for(self, sock: _socket.socket, *, reads: bool, writes: bool) -> None:
        self.epoll.modify(sock.fileno(), (select.EPOLLIN if reads else 0) | (select.EPOLLOUT if writes else 0))

    def _close_guest(self) -> None:
        assert self.guest is not None
        self.epoll.unregister(self.guest.fileno())
        self.guest.close()
        self.guest = None

    def _close_client(self) -> None:
        if self.client is not None:
            self.epoll.unregister(self.client.fileno())
            self.client.close()
        self.client = None


def remove() -> None:
    if os.path.lexists(SOCKET_NAME):
        os.unlink(SOCKET_NAME)
