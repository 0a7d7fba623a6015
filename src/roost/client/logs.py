"""Following a log: its bytes untouched, news of further attempts, and how it ended."""

from binascii import a2b_base64

import msgspec

from roost.client.stream import ServerEvent, StreamFollower
from roost.schema.feed import AttemptView, EndingView, MissingView

Piece = bytes | MissingView | AttemptView | EndingView


class LogFollower(StreamFollower):
    """A stream of pieces. Resumed where it broke off: no byte is lost, none comes twice."""

    def piece(self, timeout_s: float | None = None) -> Piece | None:
        """The next bytes, the next attempt, or the end; None when the time is over."""
        while (event := self.next(timeout_s)) is not None:
            answer = read_piece(event)
            if answer is not None:
                return answer
        return None


def read_piece(event: ServerEvent) -> Piece | None:
    """What an event of a log says; None: nothing that matters here."""
    if event.name == "message":
        return a2b_base64(event.data)
    if event.name == "missing":
        return msgspec.json.decode(event.data, type=MissingView)
    if event.name == "attempt":
        return msgspec.json.decode(event.data, type=AttemptView)
    if event.name == "end":
        return msgspec.json.decode(event.data, type=EndingView)
    return None
