"""Server-sent events: read streams without ever blocking longer than asked, and go on where one broke off."""

import socket
import time
from binascii import a2b_base64
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

import msgspec

from roost.client.errors import ApiError, Unreachable
from roost.client.polling import readable
from roost.schema.feed import AttemptView, EndingView, MissingView

READ_BYTES = 256 * 1024
BUFFER_BYTES_MAX = 16 << 20  # one event is at most some hundred kilobytes; more without an end is not one of ours
HEAD_BYTES_MAX = 64 * 1024
QUIET_S_MAX = 60.0  # servers send a comment every few seconds; one that does not is gone without saying so
PATIENCE_S = 30.0  # how long a server may be away (restarted, upgraded) before a follower gives up
TLS_WANTS = ("SSLWantReadError", "SSLWantWriteError")  # of ssl, which is not imported where it is not spoken
PAUSE_S_MIN = 0.05
PAUSE_S_MAX = 1.0


class StderrBytes(bytes):
    """Bytes of a separate stderr."""


Piece = bytes | MissingView | AttemptView | EndingView
PIECES: dict[str, type[MissingView | AttemptView | EndingView]] = {
    "missing": MissingView, "attempt": AttemptView, "end": EndingView,
}  # fmt: skip


class ServerEvent(NamedTuple):
    """One event. `id` is where a following stream goes on after it."""

    id: str
    name: str
    data: str


class Body:
    """The bytes of a response without their transfer coding."""

    def __init__(self, *, chunked: bool) -> None:
        self.chunked = chunked
        self.ended = False
        self._raw = bytearray()
        self._left = 0  # of the chunk under way, with its line end

    def feed(self, data: bytes) -> bytes:
        if not self.chunked:
            return data
        self._raw += data
        out = bytearray()
        while not self.ended:
            if self._left > 2:
                part = self._raw[: self._left - 2]
                out += part
                del self._raw[: len(part)]
                self._left -= len(part)
            if self._left:
                if self._left > 2 or len(self._raw) < 2:
                    break
                del self._raw[:2]
                self._left = 0
            end = self._raw.find(b"\r\n")
            if end < 0:
                break
            size = int(bytes(self._raw[:end]).split(b";")[0], 16)
            del self._raw[: end + 2]
            self._left = size + 2
            self.ended = size == 0
        return bytes(out)


class Events:
    """Bytes in, events out."""

    def __init__(self) -> None:
        self.last_id = ""  # also of a mark: an id without an event
        self.line = bytearray()  # bytes before the end of their line
        self._id, self._name, self._data = "", "", list[str]()

    def feed(self, data: bytes) -> list[ServerEvent]:
        self.line += data
        lines = self.line.split(b"\n")
        self.line = lines.pop()
        return [event for line in lines if (event := self._take(line.rstrip(b"\r").decode())) is not None]

    def _take(self, line: str) -> ServerEvent | None:
        if not line:
            self.last_id = self._id
            event = ServerEvent(self._id, self._name or "message", "\n".join(self._data))
            complete = bool(self._data or self._name)
            self._name, self._data = "", []
            return event if complete else None
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "id":
            self._id = value
        elif field == "event":
            self._name = value
        elif field == "data":
            self._data.append(value)
        return None


class EventStream:
    """One response that goes on, on a socket of its own."""

    def __init__(self, sock: socket.socket, report: Callable[[int, bytes], ApiError], timeout_s: float) -> None:
        self.sock = sock
        sock.setblocking(False)  # what can be read may be half of a TLS record
        self.events = Events()
        self._heard_at = time.monotonic()
        head, rest = self._head(timeout_s)
        status = int(head[9:12])
        self._body = Body(chunked=b"\r\ntransfer-encoding: chunked" in head.lower())
        if status >= 400:
            raise report(status, self._whole(rest, timeout_s))
        self._rest = rest

    def take(self) -> list[ServerEvent]:
        """The events received; call it when the socket is readable. Raises Unreachable when the stream has ended."""
        data, self._rest = self._rest or self._receive(0.0), b""
        if data is None:
            if time.monotonic() - self._heard_at > QUIET_S_MAX:
                raise Unreachable(f"the server sent nothing for {QUIET_S_MAX:.0f} s")
            return []
        self._heard_at = time.monotonic()
        events = self.events.feed(self._body.feed(data))
        if len(self.events.line) > BUFFER_BYTES_MAX:
            raise Unreachable("the server sent a line without an end")
        if not events and (not data or self._body.ended):
            raise Unreachable("the stream ended")
        return events

    @property
    def waits(self) -> bool:
        """Whether bytes are buffered that `poll` does not report."""
        return bool(self._rest) or bool(getattr(self.sock, "pending", int)())

    def _receive(self, timeout_s: float) -> bytes | None:
        """None: nothing within the time; empty: the other side has closed."""
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            if not getattr(self.sock, "pending", int)() and not readable([self.sock.fileno()], left_s):
                return None
            try:
                return self.sock.recv(READ_BYTES)
            except OSError as error:
                if not isinstance(error, BlockingIOError) and type(error).__name__ not in TLS_WANTS:
                    raise Unreachable(f"the stream broke: {error}") from None
                if not left_s:
                    return None

    def _head(self, timeout_s: float) -> tuple[bytes, bytes]:
        head = b""
        while b"\r\n\r\n" not in head:
            data = self._receive(timeout_s)
            if not data or len(head) > HEAD_BYTES_MAX:
                raise Unreachable("the server did not answer" if data is None else "the server closed the connection")
            head += data
        first, _, rest = head.partition(b"\r\n\r\n")
        return first, rest

    def _whole(self, rest: bytes, timeout_s: float) -> bytes:
        """The body of an error: what comes until the end, or until it is long enough."""
        body = self._body.feed(rest)
        while len(body) < HEAD_BYTES_MAX and not self._body.ended and not body.endswith(b"}"):
            data = self._receive(timeout_s)
            if not data:
                break
            body += self._body.feed(data)
        return body


class StreamFollower:
    """Events over as many connections as it takes. `connect` is given the id of the last event seen."""

    def __init__(self, connect: Callable[[str], EventStream], last_id: str = "") -> None:
        self._connect = connect
        self.last_id = last_id
        self.stream: EventStream | None = None
        self.pending: deque[ServerEvent] = deque()
        self.retry_at = 0.0
        self._pause_s = PAUSE_S_MIN
        self._lost_at = 0.0

    def next(self, timeout_s: float | None = None) -> ServerEvent | None:
        """The next event, or None when the time is over."""
        found = next_of([self], timeout_s)
        return found[1] if found else None

    def next_before(self, deadline: float | None) -> ServerEvent | None:
        """The next event, or None after the deadline (in monotonic seconds)."""
        left_s = None if deadline is None else deadline - time.monotonic()
        return None if left_s is not None and left_s <= 0 else self.next(left_s)

    def advance(self, now: float) -> None:
        try:
            if self.stream is None:
                if now < self.retry_at:
                    return
                self.stream = self._connect(self.last_id)
                self._lost_at = 0.0
                if not self.stream.waits:
                    return
            events = self.stream.take()
        except Unreachable:
            self.close()
            self._lost_at = self._lost_at or now
            if now - self._lost_at > PATIENCE_S:
                raise
            self.retry_at = now + self._pause_s
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
            return
        self.last_id = self.stream.events.last_id or self.last_id
        if events:
            self._pause_s = PAUSE_S_MIN
            self.pending.extend(events)

    def close(self) -> None:
        """End the stream; what is pending stays."""
        if self.stream is not None:
            self.stream.sock.close()
            self.stream = None

    def __enter__(self) -> "StreamFollower":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LogFollower(StreamFollower):
    """A log in pieces. Resumed where it broke off: no byte is lost, none comes twice."""

    def piece(self, timeout_s: float | None = None) -> Piece | None:
        """The next bytes, the next attempt, or the end; None when the time is over."""
        while (event := self.next(timeout_s)) is not None:
            answer = read_piece(event)
            if answer is not None:
                return answer
        return None


def read_piece(event: ServerEvent) -> Piece | None:
    """The content of an event of a log; None: of another event."""
    if event.name == "message":
        return a2b_base64(event.data)
    if event.name == "stderr":
        return StderrBytes(a2b_base64(event.data))
    kind = PIECES.get(event.name)
    return None if kind is None else msgspec.json.decode(event.data, type=kind)


def next_of(
    followers: Sequence[StreamFollower], timeout_s: float | None = None, wake_fd: int = -1
) -> tuple[StreamFollower, ServerEvent] | None:
    """The next event of any of them, or None when the time is over or `wake_fd` can be read."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while True:
        for follower in followers:
            if follower.pending:
                return follower, follower.pending.popleft()
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            return None
        for follower in followers:
            if follower.stream is None or follower.stream.waits:
                follower.advance(now)
        if not any(follower.pending for follower in followers) and _wait(followers, deadline, wake_fd):
            return None


def _wait(followers: Sequence[StreamFollower], deadline: float | None, wake_fd: int) -> bool:
    """Until one of them can go on, or the deadline. True: a signal arrived first."""
    now = time.monotonic()
    until = now + QUIET_S_MAX
    socks: dict[socket.socket, StreamFollower] = {}
    for follower in followers:
        if follower.stream is None:
            until = min(until, follower.retry_at)
        elif follower.stream.waits:
            return False
        else:
            socks[follower.stream.sock] = follower
    until = until if deadline is None else min(until, deadline)
    woken = [wake_fd] if wake_fd >= 0 else []
    ready = readable([*(sock.fileno() for sock in socks), *woken], max(0.0, until - now))
    now = time.monotonic()
    for sock, follower in socks.items():
        if not ready or sock.fileno() in ready:  # nothing came: let each see whether it has been quiet for too long
            follower.advance(now)
    return wake_fd in ready
