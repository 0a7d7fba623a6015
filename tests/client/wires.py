"""A server whose every answer is written by hand: for what real servers do only when they break."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

Script = list[bytes]


class Wire:
    """Connections are answered from scripts in order: one answer per request, then the connection is closed."""

    def __init__(self, scripts: list[Script]) -> None:
        self.requests: list[bytes] = []
        self._scripts = scripts
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        for script in self._scripts:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._follow, args=(connection, script), daemon=True).start()

    def _follow(self, connection: socket.socket, script: Script) -> None:
        with connection:
            for answer in script:
                self.requests.append(_read_request(connection))
                connection.sendall(answer)

    def close(self) -> None:
        self._listener.close()


@contextmanager
def wire(*scripts: Script) -> Iterator[Wire]:
    """A server that follows these scripts, one for each connection."""
    made = Wire(list(scripts))
    try:
        yield made
    finally:
        made.close()


def answer(body: bytes, status: str = "200 OK", *headers: str) -> bytes:
    """A whole answer."""
    head = "".join(f"{line}\r\n" for line in (f"content-length: {len(body)}", *headers))
    return f"HTTP/1.1 {status}\r\n{head}\r\n".encode() + body


def events(*parts: bytes) -> bytes:
    """The beginning of a stream, in chunks; it ends with the connection."""
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\ncontent-type: text/event-stream\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)


def _read_request(connection: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        more = connection.recv(65_536)
        if not more:
            return data
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
    while len(body) < length:
        body += connection.recv(65_536)
    return head + b"\r\n\r\n" + body
