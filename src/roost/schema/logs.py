"""Lines of a log, with the times when they came."""

import msgspec


class LogLineView(msgspec.Struct, frozen=True):
    """A line of a log, with its newline. `at_ms`: when the server received its beginning; 0: not known."""

    offset: int
    at_ms: int
    data: str  # its bytes in base64


class LogLinesView(msgspec.Struct, frozen=True):
    """Lines of the log of one attempt. `next`: the offset to search on from; at `size`, all of it was searched."""

    attempt: int
    lines: list[LogLineView]
    next: int
    size: int
    finished: bool
    missing: int = 0
