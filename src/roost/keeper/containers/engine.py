"""The API of a container engine (Docker or Podman): HTTP/1.1 over its unix socket, one connection for each call.

Standard library only, and few imports: a shim loads it at every start of a container.
"""

import json
import socket

HEAD_BYTES_MAX = 64 << 10
READ_BYTES = 64 << 10
EMPTY = (204, 304)  # answers without a body
ERROR_LENGTH_MAX = 500  # of what the engine says; it may quote a whole document


class EngineAway(Exception):
    """The engine does not answer: no such socket, no listener, or the connection broke."""


class EngineRefused(Exception):
    """The engine answered, and not as hoped."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def request_bytes(method: str, path: str, body: object = None, headers: dict[str, str] | None = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    more = {"Host": "engine", "Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in more.items()), "", ""]
    return "\r\n".join(lines).encode() + data


def connect(path: str, timeout_s: float | None) -> socket.socket:
    """Raises EngineAway."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        sock.connect(path)
    except OSError as error:
        sock.close()
        raise EngineAway(f"{path}: {error.strerror or error}") from None
    return sock


class EngineAnswer:
    """An answer whose body is read piece by piece."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""
        head = self._until(b"\r\n\r\n")
        first, *lines = head.decode("latin-1").split("\r\n")
        _, _, rest = first.partition(" ")
        if not rest[:3].isdigit():
            raise EngineAway("the answer is not HTTP")
        self.status = int(rest[:3])
        named = (line.partition(":") for line in lines)
        self.headers = {name.strip().lower(): value.strip() for name, _, value in named}
        self._left = 0 if self.status in EMPTY else int(self.headers.get("content-length", -1))  # -1: until it closes
        self._is_chunked = "chunked" in self.headers.get("transfer-encoding", "")

    def read(self) -> bytes:
        """The next bytes of the body; nothing: it has ended."""
        if self._is_chunked:
            return self._read_chunk()
        if self._left == 0:
            return b""
        data = self._buffer or self._receive()
        self._buffer = b""
        if self._left > 0:
            if not data:
                raise EngineAway("the answer ends too early")
            data = data[: self._left]
            self._left -= len(data)
        return data

    def rest(self) -> bytes:
        """What was read already of a stream that goes on, raw, on the socket."""
        data, self._buffer = self._buffer, b""
        return data

    def whole(self) -> bytes:
        data = b""
        while piece := self.read():
            data += piece
        return data

    def close(self) -> None:
        self.sock.close()

    def _read_chunk(self) -> bytes:
        size = int(self._until(b"\r\n").partition(b";")[0], 16)
        data = self._exactly(size)
        self._until(b"\r\n")
        self._is_chunked = size > 0
        if not size:
            self._left = 0
        return data

    def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._more()
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise EngineAway("the answer is not HTTP")
            self._more()
        head, _, self._buffer = self._buffer.partition(mark)
        return head

    def _more(self) -> None:
        data = self._receive()
        if not data:
            raise EngineAway("the answer ends too early")
        self._buffer += data

    def _receive(self) -> bytes:
        try:
            return self.sock.recv(READ_BYTES)
        except OSError as error:
            raise EngineAway(f"no answer: {error.strerror or error}") from None


class EngineClient:
    """Calls that block. Raises EngineAway and EngineRefused."""

    def __init__(self, path: str, timeout_s: float | None) -> None:
        self.path = path
        self._timeout_s = timeout_s

    def call(self, method: str, path: str, body: object = None, *, timeout_s: float | None = 0) -> object:
        """What the engine answers, from JSON; None: nothing. `timeout_s` of 0: the client's own."""
        answer = self.open(method, path, body, timeout_s=timeout_s)
        try:
            data = answer.whole()
        finally:
            answer.close()
        try:
            return json.loads(data) if data.strip() else None
        except ValueError:
            return None

    def open(
        self, method: str, path: str, body: object = None, headers: dict[str, str] | None = None, *,
        timeout_s: float | None = 0,
    ) -> EngineAnswer:  # fmt: skip
        sock = connect(self.path, self._timeout_s if timeout_s == 0 else timeout_s)
        try:
            try:
                sock.sendall(request_bytes(method, path, body, headers))
            except OSError as error:
                raise EngineAway(f"{self.path}: {error.strerror or error}") from None
            answer = EngineAnswer(sock)
            if answer.status >= 400:
                raise EngineRefused(answer.status, message_of(answer.whole()))
        except BaseException:
            sock.close()
            raise
        return answer

    def stream(self, path: str, body: object = None) -> EngineAnswer:
        """Output of a container or of a command in it: raw frames (see `frames`) for as long as it lasts."""
        answer = self.open("POST", path, body, {"Connection": "Upgrade", "Upgrade": "tcp"}, timeout_s=None)
        answer._left = -1
        answer._is_chunked = False
        return answer


def message_of(data: bytes) -> str:
    try:
        found = json.loads(data)
        text = found.get("message") or found.get("cause") or str(found)
    except (ValueError, AttributeError):
        text = data.decode(errors="replace")
    return " ".join(str(text).split())[:ERROR_LENGTH_MAX]
