"""Following the logs of one or many instances at once, in one thread, until all are finished."""

import time
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from roost.cli.common.output import echo_err, flush, print_json_line, write_bytes
from roost.cli.common.targets import Target
from roost.client import Client
from roost.client.stream import StderrBytes, StreamFollower, next_of, read_piece
from roost.client.workloads import Streams
from roost.schema.feed import AttemptView, EndingView, MissingView

AT_ONCE_MAX = 64  # streams open at a time; the next instance is followed when one of them ends

Tick = Callable[[bool], float | None]


class LogSink:
    """Where the bytes of one instance go: to stdout and stderr, as they are."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, data: bytes, *, err: bool = False) -> None:
        write_bytes(data, err=err)
        flush()

    def missing(self, missing: MissingView) -> None:
        """The end of the log of an attempt never came."""
        echo_err(
            f"{self.target}: the last {missing.bytes} bytes of {missing.stream} of attempt {missing.attempt} are"
            f" missing: node {missing.node} has not sent them"
        )

    def attempt(self, attempt: AttemptView) -> None:
        """Another attempt begins."""

    def end(self, ending: EndingView) -> None:
        """It is finished."""


class PrefixSink(LogSink):
    """Whole lines with the instance in front, for several of them side by side."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._prefix = f"{target} | ".encode()
        self._rests = {False: b"", True: b""}  # of stdout, and of stderr

    def write(self, data: bytes, *, err: bool = False) -> None:
        *lines, self._rests[err] = (self._rests[err] + data).split(b"\n")
        if lines:
            super().write(b"".join(self._prefix + line + b"\n" for line in lines), err=err)

    def end(self, ending: EndingView) -> None:
        for err, rest in self._rests.items():
            if rest:
                super().write(self._prefix + rest + b"\n", err=err)
                self._rests[err] = b""


class JsonSink(LogSink):
    """One line of JSON for each thing that happens; bytes are base64, because they may be no text."""

    def write(self, data: bytes, *, err: bool = False) -> None:
        self._tell("output", stream="stderr" if err else "stdout", data=b2a_base64(data, newline=False).decode())

    def missing(self, missing: MissingView) -> None:
        self._tell("missing", attempt=missing.attempt, stream=missing.stream, bytes=missing.bytes)

    def attempt(self, attempt: AttemptView) -> None:
        self._tell("attempt", attempt=attempt.attempt, node=attempt.node, message=attempt.message)

    def end(self, ending: EndingView) -> None:
        self._tell("end", state=ending.state, attempt=ending.attempt, message=ending.message,
                   exit_code=ending.exit_code, signal=ending.signal)  # fmt: skip

    def _tell(self, event: str, **fields: Any) -> None:
        target = self.target
        print_json_line(
            {"event": event, "project": target.project, "name": target.name, "index": target.index, **fields}
        )


class SearchSink(LogSink):
    """Lines that have a text, with the times when they came; into another sink.

    A line that is followed has the time when it came here: the server's is at most a moment earlier.
    """

    def __init__(self, inner: LogSink, grep: bytes, *, timestamps: bool) -> None:
        super().__init__(inner.target)
        self._inner = inner
        self._grep = grep
        self._timestamps = timestamps
        self._rests = {False: b"", True: b""}  # of stdout, and of stderr

    def line(self, data: bytes, at_ms: int, *, err: bool = False) -> None:
        self._inner.write((_stamp(at_ms) if self._timestamps else b"") + data, err=err)

    def write(self, data: bytes, *, err: bool = False) -> None:
        if not self._grep and not self._timestamps:
            self._inner.write(data, err=err)
            return
        *lines, self._rests[err] = (self._rests[err] + data).split(b"\n")
        for line in lines:
            if self._grep in line:
                self.line(line + b"\n", time.time_ns() // 1_000_000, err=err)

    def missing(self, missing: MissingView) -> None:
        self._inner.missing(missing)

    def attempt(self, attempt: AttemptView) -> None:
        self._inner.attempt(attempt)

    def end(self, ending: EndingView) -> None:
        for err, rest in self._rests.items():
            if rest and self._grep in rest:
                self.line(rest, time.time_ns() // 1_000_000, err=err)
            self._rests[err] = b""
        self._inner.end(ending)


def _stamp(at_ms: int) -> bytes:
    at = datetime.fromtimestamp(at_ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    return f"{at} ".encode()


class Position(NamedTuple):
    """Where to follow a log from."""

    attempt: int = 0
    offset: int = 0
    stderr_offset: int = 0


def follow_all(
    client: Client, targets: Sequence[Target], kind: Callable[[Target], LogSink], *, attempt: int = 0,
    stream: Streams = "all", tick: Tick | None = None, wake_fd: int = -1,
    positions: Mapping[Target, Position] | None = None,
) -> dict[Target, EndingView]:  # fmt: skip
    """Follow until all are over. `tick(something came)` is asked how long to wait, or None: stop following."""
    waiting = list(reversed(targets))
    following: dict[StreamFollower, LogSink] = {}
    endings: dict[Target, EndingView] = {}
    came = False
    try:
        while waiting or following:
            while waiting and len(following) < AT_ONCE_MAX:
                target = waiting.pop()
                assert target.index is not None
                position = (positions or {}).get(target, Position(attempt))
                follower = client.logs.follow(
                    target.project, target.name, target.index, stream=stream, **position._asdict()
                )
                following[follower] = kind(target)
            timeout_s = tick(came) if tick is not None else -1.0
            if timeout_s is None:
                break
            found = next_of(list(following), None if timeout_s < 0 else timeout_s, wake_fd)
            if found is None:
                continue
            ready, event = found
            piece = read_piece(event)
            sink = following[ready]
            came = came or piece is not None
            if isinstance(piece, bytes):
                sink.write(piece, err=isinstance(piece, StderrBytes))
            elif isinstance(piece, MissingView):
                sink.missing(piece)
            elif isinstance(piece, AttemptView):
                sink.attempt(piece)
            elif isinstance(piece, EndingView):
                sink.end(piece)
                endings[sink.target] = piece
                del following[ready]
                ready.close()
    finally:
        for other_follower in following:
            other_follower.close()
    return endings
