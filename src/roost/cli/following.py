"""Following the logs of one or many instances at once, in one thread, until all of them are over."""

import sys
from binascii import b2a_base64
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from roost.cli.output import print_json_line
from roost.cli.targets import Target
from roost.client.logs import read_piece
from roost.client.stream import Follower, next_of
from roost.client.types import Attempt, Ending

if TYPE_CHECKING:
    from roost.client import Client

AT_ONCE_MAX = 64  # streams open at a time; the next instance is followed when one of them is over

Tick = Callable[[bool], float | None]


class Sink:
    """Where the bytes of one instance go: to stdout, as they are."""

    def __init__(self, target: Target) -> None:
        self.target = target

    def write(self, data: bytes) -> None:
        """Bytes of its log."""
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def attempt(self, attempt: Attempt) -> None:
        """Another attempt begins."""

    def end(self, ending: Ending) -> None:
        """It is over."""


class PrefixSink(Sink):
    """Whole lines with the instance in front, for several of them side by side."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self._prefix = f"{target} | ".encode()
        self._rest = b""

    def write(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if lines:
            super().write(b"".join(self._prefix + line + b"\n" for line in lines))

    def end(self, ending: Ending) -> None:
        if self._rest:
            super().write(self._prefix + self._rest + b"\n")
            self._rest = b""


class JsonSink(Sink):
    """One line of JSON for each thing that happens; bytes are base64, because they may be no text."""

    def write(self, data: bytes) -> None:
        self._tell("output", data=b2a_base64(data, newline=False).decode())

    def attempt(self, attempt: Attempt) -> None:
        self._tell("attempt", attempt=attempt.attempt, node=attempt.node, cause=attempt.cause)

    def end(self, ending: Ending) -> None:
        self._tell("end", state=ending.state, attempt=ending.attempt, cause=ending.cause,
                   exit_code=ending.exit_code, signal=ending.signal)  # fmt: skip

    def _tell(self, event: str, **fields: Any) -> None:
        target = self.target
        print_json_line(
            {"event": event, "project": target.project, "name": target.name, "index": target.index, **fields}
        )


def follow_all(
    client: "Client", targets: Sequence[Target], kind: type[Sink], *, attempt: int = 0, tick: Tick | None = None,
    wake_fd: int = -1,
) -> dict[Target, Ending]:  # fmt: skip
    """Follow until all are over. `tick(something came)` is asked how long to wait, or None: stop following."""
    waiting = list(reversed(targets))
    following: dict[Follower, Sink] = {}
    endings: dict[Target, Ending] = {}
    came = False
    try:
        while waiting or following:
            while waiting and len(following) < AT_ONCE_MAX:
                target = waiting.pop()
                assert target.index is not None
                follower = client.follow_log(target.project, target.name, target.index, attempt=attempt)
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
                sink.write(piece)
            elif isinstance(piece, Attempt):
                sink.attempt(piece)
            elif isinstance(piece, Ending):
                sink.end(piece)
                endings[sink.target] = piece
                del following[ready]
                ready.close()
    finally:
        for each in following:
            each.close()
    return endings
